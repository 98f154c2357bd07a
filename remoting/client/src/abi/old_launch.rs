//! The launch functions from before CUDA 4.0. A function object stores their state (`driverapi::old_launch`).

use super::launch::launch;
use crate::boundary::{LEGACY, inputs};
use crate::devices::context;
use crate::launch::resolve;
use crate::module::Function;
use crate::{Code, exports};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::{CUfunction, CUstream};
use protocol::LaunchShape;
use std::ffi::{c_float, c_int, c_uint, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Arc;

exports! {
    fn cuFuncSetBlockShape(handle: CUfunction, x: c_int, y: c_int, z: c_int) {
        function(handle)?.old_launch.state().set_block([x, y, z])
    }

    fn cuFuncSetSharedSize(handle: CUfunction, bytes: c_uint) {
        function(handle)?.old_launch.state().shared = bytes;
        Ok(())
    }

    fn cuParamSetSize(handle: CUfunction, bytes: c_uint) {
        function(handle)?.old_launch.state().set_size(bytes)
    }

    fn cuParamSeti(handle: CUfunction, offset: c_int, value: c_uint) {
        function(handle)?.old_launch.state().put(offset, &value.to_ne_bytes())
    }

    fn cuParamSetf(handle: CUfunction, offset: c_int, value: c_float) {
        function(handle)?.old_launch.state().put(offset, &value.to_ne_bytes())
    }

    fn cuParamSetv(handle: CUfunction, offset: c_int, value: *mut c_void, bytes: c_uint) {
        let value = inputs(value.cast::<u8>().cast_const(), bytes as usize)?;
        function(handle)?.old_launch.state().put(offset, &value)
    }

    fn cuLaunch(handle: CUfunction) { grid(handle, [1, 1], null_mut()) }

    fn cuLaunchGrid(handle: CUfunction, width: c_int, height: c_int) { grid(handle, [width, height], null_mut()) }

    fn cuLaunchGridAsync(handle: CUfunction, width: c_int, height: c_int, stream: CUstream) {
        grid(handle, [width, height], stream)
    }
}

fn function(handle: CUfunction) -> Result<Arc<Function>, Code> {
    resolve(handle, &context::current()?)
}

unsafe fn grid(handle: CUfunction, grid: [c_int; 2], stream: CUstream) -> Result<(), Code> {
    let [Ok(width), Ok(height)] = grid.map(u32::try_from) else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let function = function(handle)?;
    let state = function.old_launch.state().clone();
    let shape =
        LaunchShape { grid: [width, height, 1], block: state.block, shared: state.shared, attributes: Vec::new() };
    let parameters = state.clone().extra();
    let mut extra = parameters.list.map(with_exposed_provenance_mut::<c_void>);
    // SAFETY: as the caller of the exported function vouches; the parameters are memory of this library.
    unsafe { launch(handle, shape, (stream, LEGACY), &[], null_mut(), extra.as_mut_ptr())? };
    // Restore the state, because a launch of this kind must not change it.
    *function.old_launch.state() = state;
    Ok(())
}
