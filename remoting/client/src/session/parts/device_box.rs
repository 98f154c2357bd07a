//! The device side of a copy: a box of bytes at a device address.

use protocol::Extent;

/// A box of bytes in the device memory of a context.
#[derive(Clone)]
pub struct DeviceBox {
    pub context: u64,
    pub address: u64,
    pub extent: Extent,
}

impl DeviceBox {
    /// Returns whether the bytes are contiguous.
    pub fn is_linear(&self) -> bool {
        self.extent.height == 1 && self.extent.depth == 1
    }

    /// Returns `len` bytes of a contiguous box, starting at `offset`.
    pub fn part(&self, offset: u64, len: u64) -> DeviceBox {
        DeviceBox { context: self.context, address: self.address + offset, extent: Extent::linear(len) }
    }
}
