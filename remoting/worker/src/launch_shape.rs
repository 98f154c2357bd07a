//! A launch that is only asked about.

use crate::driver::{LaunchConfig, RawAttribute, Result};
use crate::modules::attribute;
use protocol::LaunchShape;
use std::ptr::null_mut;

/// Owns the attributes that the driver's structure points to.
pub struct AskedLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    attributes: Vec<RawAttribute>,
}

impl AskedLaunch {
    pub fn new(shape: &LaunchShape) -> Result<AskedLaunch> {
        let attributes = shape.attributes.iter().map(attribute).collect::<Result<_>>()?;
        Ok(AskedLaunch { grid: shape.grid, block: shape.block, shared: shape.shared, attributes })
    }

    /// Valid as long as `self`; on no stream.
    pub fn raw(&mut self) -> LaunchConfig {
        LaunchConfig {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: null_mut(),
            attributes: if self.attributes.is_empty() { null_mut() } else { self.attributes.as_mut_ptr() },
            attribute_count: self.attributes.len() as u32,
        }
    }
}
