//! The entry points for arrays, texture objects and surface objects, such as `cuArrayCreate`.

use super::entry::entry_points;
use super::handles::id;
use crate::driver::{current, driver};
use crate::ffi::{In, Out, R, tell};
use crate::memory::arrays::Array;
use driverapi::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use driverapi::errors::*;
use driverapi::types::*;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

fn create(array: Out<CUarray>, asked: CUDA_ARRAY3D_DESCRIPTOR) -> R {
    let context = current()?;
    let array = array.required()?;
    driver()?.graphs.check_call()?;
    let made = driver()?.create_array(asked, context.device.ordinal, context.id);
    let made = made.inspect_err(|&code| {
        if code == CUDA_ERROR_NOT_SUPPORTED {
            tell("an array that is a cubemap, sparse or of a format of graphics");
        }
    })?;
    array.set(without_provenance_mut(made))
}

fn array(handle: CUarray) -> R<Arc<Array>> {
    current()?;
    driver()?.array(id(handle))
}

entry_points! {
    fn cuArrayCreate_v2(made: Out<CUarray>, asked: In<CUDA_ARRAY_DESCRIPTOR>) {
        let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = asked.get()?;
        create(made, CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 })
    }

    fn cuArray3DCreate_v2(made: Out<CUarray>, asked: In<CUDA_ARRAY3D_DESCRIPTOR>) {
        create(made, asked.get()?)
    }

    fn cuArrayGetDescriptor_v2(found: Out<CUDA_ARRAY_DESCRIPTOR>, handle: CUarray) {
        let CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Format, NumChannels, .. } = array(handle)?.asked;
        found.set(CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels })
    }

    fn cuArray3DGetDescriptor_v2(found: Out<CUDA_ARRAY3D_DESCRIPTOR>, handle: CUarray) {
        found.set(array(handle)?.asked)
    }

    fn cuArrayDestroy(handle: CUarray) {
        array(handle)?;
        driver()?.destroy_array(id(handle))
    }

    fn cuTexObjectCreate(
        texture: Out<CUtexObject>, resource: In<CUDA_RESOURCE_DESC>, sampling: In<CUDA_TEXTURE_DESC>,
        view: In<CUDA_RESOURCE_VIEW_DESC>,
    ) {
        let (context, texture) = (current()?, texture.required()?);
        let view = if view.is_null() { None } else { Some(view.get()?) };
        texture.set(driver()?.create_texture(context.id, resource.get()?, sampling.get()?, view)? as u64)
    }

    fn cuTexObjectDestroy(texture: CUtexObject) {
        current()?;
        driver()?.destroy_texture(texture, false)
    }

    fn cuTexObjectGetResourceDesc(found: Out<CUDA_RESOURCE_DESC>, texture: CUtexObject) {
        found.set(driver()?.described(texture, false)?.resource)
    }

    fn cuTexObjectGetTextureDesc(found: Out<CUDA_TEXTURE_DESC>, texture: CUtexObject) {
        found.set(driver()?.described(texture, false)?.sampling.ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuTexObjectGetResourceViewDesc(found: Out<CUDA_RESOURCE_VIEW_DESC>, texture: CUtexObject) {
        found.set(driver()?.described(texture, false)?.view.ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuSurfObjectCreate(surface: Out<CUsurfObject>, resource: In<CUDA_RESOURCE_DESC>) {
        let (context, surface) = (current()?, surface.required()?);
        surface.set(driver()?.create_surface(context.id, resource.get()?)? as u64)
    }

    fn cuSurfObjectDestroy(surface: CUsurfObject) {
        current()?;
        driver()?.destroy_texture(surface, true)
    }

    fn cuSurfObjectGetResourceDesc(found: Out<CUDA_RESOURCE_DESC>, surface: CUsurfObject) {
        found.set(driver()?.described(surface, true)?.resource)
    }
}
