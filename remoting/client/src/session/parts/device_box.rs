//! The device side of a copy: a box of bytes at an address.

use protocol::Extent;

/// Bytes on a device, in a context.
#[derive(Clone)]
pub struct DeviceBox {
    pub context: u64,
    pub address: u64,
    pub extent: Extent,
}

impl DeviceBox {
    /// Whether the bytes lie together.
    pub fn is_linear(&self) -> bool {
        self.extent.height == 1 && self.extent.depth == 1
    }

    /// Returns `len` bytes of a linear box, from `offset` on.
    pub fn part(&self, offset: u64, len: u64) -> DeviceBox {
        DeviceBox { context: self.context, address: self.address + offset, extent: Extent::linear(len) }
    }
}
