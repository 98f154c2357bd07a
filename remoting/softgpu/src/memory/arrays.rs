//! Arrays, and the descriptions from which textures and surfaces were created.

use crate::engine::Texels;
use crate::ffi::R;
use crate::memory::copy::{End, Extent, Place};
use driverapi::arrays::*;
use driverapi::types::CUDA_ARRAY3D_DESCRIPTOR;
use driverapi::views::View;

pub struct Array {
    pub asked: CUDA_ARRAY3D_DESCRIPTOR,
    pub context: usize,
    pub shape: Shape,
    pub address: u64,
    pub pitch: u64,
}

/// The description from which a texture or surface object was made.
pub struct Described {
    pub id: usize,
    pub context: usize,
    pub resource: CUDA_RESOURCE_DESC,
    /// The sampling parameters, or `None` for a surface.
    pub sampling: Option<CUDA_TEXTURE_DESC>,
    pub view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

impl Array {
    /// Returns one end of a copy of size `extent`. `at` is its start: the offset in bytes, the row and the slice.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the copy is not inside the array.
    pub fn end(&self, at: [u64; 3], extent: Extent) -> R<End> {
        self.shape.check_box(at, [extent.width, extent.height, extent.depth])?;
        let slice = self.slice();
        let address = self.address + at[2] * slice + at[1] * self.pitch + at[0];
        Ok(End { place: Place::Device, address, pitch: self.pitch, slice })
    }

    /// Returns one end of a copy of `bytes` bytes from an offset in bytes, and the extent of the copy.
    ///
    /// # Errors
    /// The errors of [`Shape::stretch`].
    pub fn stretch(&self, offset: u64, bytes: u64) -> R<(End, Extent)> {
        let (at, [width, height, depth]) = self.shape.stretch(offset, bytes)?;
        let extent = Extent { width, height, depth };
        self.end(at, extent).map(|end| (end, extent))
    }

    fn slice(&self) -> u64 {
        self.pitch * self.shape.height
    }

    pub fn texels(&self) -> Texels {
        let Shape { texel, width, height, depth, layered, .. } = self.shape;
        let (address, pitch, slice) = (self.address, self.pitch, self.slice());
        Texels { texel, address, sides: [width, height, depth], pitch, slice, layered, own: true }
    }
}

impl Array {
    /// # Errors
    /// The errors of [`CUDA_RESOURCE_VIEW_DESC::read`].
    pub fn seen_as(&self, view: &CUDA_RESOURCE_VIEW_DESC) -> R<Texels> {
        let (View { texel, first_layer, depth }, whole) = (view.read(&self.shape)?, self.texels());
        let [width, height, _] = whole.sides;
        let address = whole.address + first_layer * whole.slice;
        Ok(Texels { texel, address, sides: [width, height, depth], ..whole })
    }
}
