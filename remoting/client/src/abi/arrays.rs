//! Arrays, texture objects and surface objects. Mipmaps and cubemaps are not supported.

use crate::Code;
use crate::boundary::{input, refused, write};
use crate::devices::context;
use crate::exports;
use crate::graphs::graph::GRAPHS;
use crate::objects::arrays::{self, Array};
use driverapi::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use driverapi::errors::*;
use driverapi::types::*;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

fn create(is_wanted: bool, asked: CUDA_ARRAY3D_DESCRIPTOR) -> Result<CUarray, Code> {
    let live = context::current()?;
    GRAPHS.check_call()?;
    if !is_wanted {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let made = named(arrays::create(&live, asked), "arrays that are cubemaps, sparse or of formats of graphics")?;
    Ok(without_provenance_mut(made.handle))
}

fn array(handle: CUarray) -> Result<Arc<Array>, Code> {
    context::current()?;
    arrays::get(handle.addr())
}

/// Logs `what` if the call failed because it is not supported.
fn named<T>(made: Result<T, Code>, what: &'static str) -> Result<T, Code> {
    made.inspect_err(|code| {
        if *code == CUDA_ERROR_NOT_SUPPORTED {
            let _ = refused(what);
        }
    })
}

const TEXTURES: &str = "textures of mipmaps, of formats of graphics, as compressed blocks, or in sRGB";

exports! {
    fn cuArrayCreate_v2(made: *mut CUarray, asked: *const CUDA_ARRAY_DESCRIPTOR) {
        let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = input(asked)?;
        let asked = CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 };
        write(made, create(!made.is_null(), asked)?)
    }

    fn cuArray3DCreate_v2(made: *mut CUarray, asked: *const CUDA_ARRAY3D_DESCRIPTOR) {
        write(made, create(!made.is_null(), input(asked)?)?)
    }

    fn cuArrayGetDescriptor_v2(found: *mut CUDA_ARRAY_DESCRIPTOR, handle: CUarray) {
        let CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Format, NumChannels, .. } = array(handle)?.asked;
        write(found, CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels })
    }

    fn cuArray3DGetDescriptor_v2(found: *mut CUDA_ARRAY3D_DESCRIPTOR, handle: CUarray) {
        write(found, array(handle)?.asked)
    }

    fn cuArrayDestroy(handle: CUarray) {
        array(handle)?;
        GRAPHS.check_call()?;
        arrays::destroy(handle.addr())
    }

    fn cuTexObjectCreate(
        texture: *mut CUtexObject,
        resource: *const CUDA_RESOURCE_DESC,
        sampling: *const CUDA_TEXTURE_DESC,
        view: *const CUDA_RESOURCE_VIEW_DESC,
    ) {
        let (live, resource, sampling) = (context::current()?, input(resource)?, input(sampling)?);
        if texture.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let view = if view.is_null() { None } else { Some(input(view)?) };
        write(texture, named(arrays::create_texture(&live, resource, Some(sampling), view), TEXTURES)?)
    }

    fn cuTexObjectDestroy(texture: CUtexObject) { arrays::destroy_texture(texture, false) }

    fn cuTexObjectGetResourceDesc(found: *mut CUDA_RESOURCE_DESC, texture: CUtexObject) {
        write(found, arrays::texture(texture, false)?.resource)
    }

    fn cuTexObjectGetTextureDesc(found: *mut CUDA_TEXTURE_DESC, texture: CUtexObject) {
        write(found, arrays::texture(texture, false)?.sampling.ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuTexObjectGetResourceViewDesc(found: *mut CUDA_RESOURCE_VIEW_DESC, texture: CUtexObject) {
        write(found, arrays::texture(texture, false)?.view.ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuSurfObjectCreate(surface: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC) {
        let (live, resource) = (context::current()?, input(resource)?);
        if surface.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(surface, named(arrays::create_texture(&live, resource, None, None), TEXTURES)?)
    }

    fn cuSurfObjectDestroy(surface: CUsurfObject) { arrays::destroy_texture(surface, true) }

    fn cuSurfObjectGetResourceDesc(found: *mut CUDA_RESOURCE_DESC, surface: CUsurfObject) {
        write(found, arrays::texture(surface, true)?.resource)
    }
}
