//! A launch as the driver takes it.

use crate::driver::{Handle, Result};
use crate::modules::attribute;
use driverapi::types::{CUlaunchAttribute, CUlaunchConfig};
use protocol::LaunchShape;
use std::ptr::null_mut;

/// It points to the attributes.
pub fn config(shape: &LaunchShape, attributes: &mut [CUlaunchAttribute], stream: Handle) -> CUlaunchConfig {
    let LaunchShape { grid, block, shared, .. } = *shape;
    CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        hStream: stream.raw(),
        attrs: if attributes.is_empty() { null_mut() } else { attributes.as_mut_ptr() },
        numAttrs: attributes.len() as u32,
    }
}

/// A launch that is only asked about, on no stream.
pub struct AskedLaunch {
    shape: LaunchShape,
    attributes: Vec<CUlaunchAttribute>,
}

impl AskedLaunch {
    pub fn new(shape: LaunchShape) -> Result<AskedLaunch> {
        let attributes = shape.attributes.iter().map(attribute).collect::<Result<_>>()?;
        Ok(AskedLaunch { shape, attributes })
    }

    /// Valid as long as `self`.
    pub fn raw(&mut self) -> CUlaunchConfig {
        config(&self.shape, &mut self.attributes, Handle::NULL)
    }
}
