//! The two sides of a copy, with all sizes in bytes.

use crate::session::{DeviceBox, HostBox};
use protocol::Extent;

/// One side of a copy: an address, and the number of bytes from row to row and from slice to slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    pub address: u64,
    pub pitch: u64,
    pub slice: u64,
}

/// The size of a copy: bytes of a row, rows of a slice, and slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Shape {
    pub fn linear(len: u64) -> Self {
        Shape { width: len, height: 1, depth: 1 }
    }

    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl Side {
    pub fn linear(address: u64, len: u64) -> Self {
        Side { address, pitch: len, slice: len }
    }

    /// Returns the number of bytes from the first byte to the end of the last byte, or `None` if it overflows.
    pub fn span(&self, shape: &Shape) -> Option<u64> {
        let rows = shape.height.checked_sub(1)?.checked_mul(self.pitch)?;
        shape.depth.checked_sub(1)?.checked_mul(self.slice)?.checked_add(rows)?.checked_add(shape.width)
    }

    pub fn host(&self, shape: &Shape) -> HostBox {
        let Shape { width, height, depth } = *shape;
        HostBox { base: self.address as usize, width, height, depth, pitch: self.pitch, slice: self.slice }
    }

    pub fn extent(&self, shape: &Shape) -> Extent {
        let Shape { width, height, depth } = *shape;
        Extent { width, height, depth, pitch: self.pitch, slice: self.slice }
    }

    pub fn device(&self, context: u64, shape: &Shape) -> DeviceBox {
        DeviceBox { context, address: self.address, extent: self.extent(shape) }
    }
}
