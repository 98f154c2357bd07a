//! Converts a launch into the structures that the driver takes.

use crate::driver::{Handle, Result};
use driverapi::attributes::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
use driverapi::errors::CUDA_ERROR_NOT_SUPPORTED;
use driverapi::types::{CUlaunchAttribute, CUlaunchConfig};
use protocol::{LaunchAttribute, LaunchShape};
use std::ptr::null_mut;

/// Returns a launch configuration that points to `attributes`.
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

/// Converts an attribute. Refuses attributes that name objects of the client or create new objects. `launch_events`
/// handles the attributes that name events.
pub fn attribute(a: &LaunchAttribute) -> Result<CUlaunchAttribute> {
    match a.id {
        LaunchAttribute::PROGRAMMATIC_EVENT
        | LaunchAttribute::COMPLETION_EVENT
        | CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Err(CUDA_ERROR_NOT_SUPPORTED),
        id => Ok(CUlaunchAttribute::new(id, a.value)),
    }
}

/// The configuration of a launch that is only queried and never executed. It has no stream.
pub struct AskedLaunch {
    shape: LaunchShape,
    attributes: Vec<CUlaunchAttribute>,
}

impl AskedLaunch {
    pub fn new(shape: LaunchShape) -> Result<AskedLaunch> {
        let attributes = shape.attributes.iter().map(attribute).collect::<Result<_>>()?;
        Ok(AskedLaunch { shape, attributes })
    }

    /// Returns the driver's configuration, which points into `self` and is valid as long as `self`.
    pub fn raw(&mut self) -> CUlaunchConfig {
        config(&self.shape, &mut self.attributes, Handle::NULL)
    }
}
