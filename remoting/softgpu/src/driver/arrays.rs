//! Arrays, and textures and surfaces, which read arrays or plain memory.

use super::state::Driver;
use crate::engine::{Addressing, Sampling, Texels, Texture};
use crate::ffi::R;
use crate::memory::allocations::Kind;
use crate::memory::arrays::{Array, Described};
use crate::process::handles;
use crate::process::model::TEXTURE_ALIGNMENT;
use crate::streams::queue::Marker;
use driverapi::arrays::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::CUDA_ARRAY3D_DESCRIPTOR;
use std::sync::Arc;

/// The alignment in bytes of each row of an array.
const ROW_ALIGNMENT: u64 = 64;

impl Driver {
    /// Creates an array in the context and charges its device. Returns the array's handle.
    ///
    /// # Errors
    /// The errors of [`Shape::read`], and `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn create_array(&self, asked: CUDA_ARRAY3D_DESCRIPTOR, device: usize, context: usize) -> R<usize> {
        let shape = Shape::read(&asked)?;
        let pitch = shape.row_bytes().next_multiple_of(ROW_ALIGNMENT);
        let bytes = pitch.checked_mul(shape.height).and_then(|slice| slice.checked_mul(shape.depth));
        let bytes = bytes.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = self.memory.allocate(bytes, Kind::Array, device, context)?.base;
        let id = handles::mint();
        self.arrays.insert(id, Arc::new(Array { asked, context, shape, address, pitch }));
        Ok(id)
    }

    pub fn array(&self, id: usize) -> R<Arc<Array>> {
        self.arrays.get(id).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn destroy_array(&self, id: usize) -> R {
        let array = self.arrays.get(id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(allocation) = self.memory.find(array.address) {
            self.wait_before_free(&allocation);
        }
        let array = self.arrays.remove(id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.memory.release(array.address, |a| a.kind == Kind::Array).map(drop)
    }

    /// Removes the textures, surfaces and arrays of a context that ends. Their memory is freed with the context's other
    /// memory.
    pub fn forget_arrays(&self, context: usize) {
        self.arrays.remove_where(|array| array.context == context);
        for described in self.described.remove_where(|described| described.context == context) {
            self.executor.textures.remove(described.id as u64);
        }
    }

    /// Creates a texture of the context and returns its handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the resource or the sampling is invalid for a texture, `CUDA_ERROR_NOT_SUPPORTED`
    /// for mipmaps.
    pub fn create_texture(
        &self,
        context: usize,
        resource: CUDA_RESOURCE_DESC,
        asked: CUDA_TEXTURE_DESC,
        view: Option<CUDA_RESOURCE_VIEW_DESC>,
    ) -> R<usize> {
        let texels = match (resource.read()?, &view) {
            (Resource::Array(id), Some(view)) => self.array(id as usize)?.seen_as(view)?,
            (_, Some(_)) => return Err(CUDA_ERROR_INVALID_VALUE),
            (resource, None) => self.texels(resource)?,
        };
        let sampling = sampling(&asked, texels.texel.format)?;
        let id = handles::mint();
        self.insert_texture(texels, Some(sampling), Described { id, context, resource, sampling: Some(asked), view })
    }

    /// Creates a surface of the context and returns its handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` unless the resource is an array that was created for surfaces.
    pub fn create_surface(&self, context: usize, resource: CUDA_RESOURCE_DESC) -> R<usize> {
        let Resource::Array(id) = resource.read()? else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let array = self.array(id as usize)?;
        if array.asked.Flags & CUDA_ARRAY3D_SURFACE_LDST == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let described = Described { id: handles::mint(), context, resource, sampling: None, view: None };
        self.insert_texture(array.texels(), None, described)
    }

    fn insert_texture(&self, texels: Texels, sampling: Option<Sampling>, described: Described) -> R<usize> {
        let id = described.id;
        self.executor.textures.insert(id as u64, Texture { texels, sampling });
        self.described.insert(id, Arc::new(described));
        Ok(id)
    }

    /// Returns the description of a texture or, if `surface` is set, of a surface.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the handle does not name such an object.
    pub fn described(&self, handle: u64, surface: bool) -> R<Arc<Described>> {
        let described = usize::try_from(handle).ok().and_then(|id| self.described.get(id));
        described.filter(|each| each.sampling.is_none() == surface).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Destroys a texture or, if `surface` is set, a surface, after the work of its context has ended.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the handle does not name such an object.
    pub fn destroy_texture(&self, handle: u64, surface: bool) -> R {
        let described = self.described(handle, surface)?;
        // Programs destroy a texture directly after they launch a kernel that uses it, so wait for the kernel.
        for context in self.contexts.all().iter().filter(|context| context.id == described.context) {
            context.ends().iter().for_each(Marker::wait);
        }
        self.described.remove(handle as usize);
        self.executor.textures.remove(handle);
        Ok(())
    }

    fn texels(&self, resource: Resource) -> R<Texels> {
        let (address, texel, sides, pitch) = match resource {
            Resource::Array(id) => return Ok(self.array(id as usize)?.texels()),
            // Programs may name a longer range than the allocation has, and NVIDIA's driver accepts that (sample
            // convolutionFFT2D).
            Resource::Linear { address, texel, bytes } => {
                let rest = self.memory.find(address).map_or(0, |found| found.base + found.len - address);
                let bytes = bytes.min(rest);
                (address, texel, [bytes / texel.bytes(), 1], bytes)
            }
            Resource::Pitched { address, texel, width, height, pitch } => (address, texel, [width, height], pitch),
        };
        let row = sides[0].checked_mul(texel.bytes()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let bytes = pitch.checked_mul(sides[1]).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let aligned = address.is_multiple_of(TEXTURE_ALIGNMENT.into());
        if sides.contains(&0) || row > pitch || !aligned || !self.memory.is_valid(address, bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let [width, height] = sides;
        Ok(Texels { texel, address, sides: [width, height, 1], pitch, slice: bytes, layered: false, own: false })
    }
}

fn sampling(asked: &CUDA_TEXTURE_DESC, format: Format) -> R<Sampling> {
    let mode = |mode| {
        Ok(match mode {
            CU_TR_ADDRESS_MODE_WRAP => Addressing::Wrap,
            CU_TR_ADDRESS_MODE_CLAMP => Addressing::Clamp,
            CU_TR_ADDRESS_MODE_MIRROR => Addressing::Mirror,
            CU_TR_ADDRESS_MODE_BORDER => Addressing::Border,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    };
    let [x, y, z] = asked.addressMode;
    let addressing = [mode(x)?, mode(y)?, mode(z)?];
    let linear = match asked.filterMode {
        CU_TR_FILTER_MODE_POINT => false,
        CU_TR_FILTER_MODE_LINEAR => true,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    if asked.flags & CU_TRSF_SRGB != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let small = matches!(format, Format::Unsigned(1 | 2) | Format::Signed(1 | 2));
    let as_fraction = small && asked.flags & CU_TRSF_READ_AS_INTEGER == 0;
    if linear && !as_fraction && !matches!(format, Format::Half | Format::Float) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let normalised = asked.flags & CU_TRSF_NORMALIZED_COORDINATES != 0;
    Ok(Sampling { addressing, linear, normalised, as_fraction, border: asked.borderColor })
}
