//! The entry points for launches from before CUDA 4.0. The function object stores their state
//! (`driverapi::old_launch`).

use super::default_stream::DefaultStream;
use super::entry::entry_points;
use super::kernels::function;
use super::launching::launch;
use crate::ffi::{R, bytes};
use crate::kernels::launch::Shape;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::{CUfunction, CUstream};
use graphs::LaunchEdges;
use std::ffi::{c_float, c_int, c_uint, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

entry_points! {
    fn cuFuncSetBlockShape(which: CUfunction, x: c_int, y: c_int, z: c_int) {
        function(which)?.old_launch.state().set_block([x, y, z])
    }

    fn cuFuncSetSharedSize(which: CUfunction, bytes: c_uint) {
        function(which)?.old_launch.state().shared = bytes;
        Ok(())
    }

    fn cuParamSetSize(which: CUfunction, bytes: c_uint) {
        function(which)?.old_launch.state().set_size(bytes)
    }

    fn cuParamSeti(which: CUfunction, offset: c_int, value: c_uint) {
        function(which)?.old_launch.state().put(offset, &value.to_ne_bytes())
    }

    fn cuParamSetf(which: CUfunction, offset: c_int, value: c_float) {
        function(which)?.old_launch.state().put(offset, &value.to_ne_bytes())
    }

    fn cuParamSetv(which: CUfunction, offset: c_int, value: *mut c_void, size: c_uint) {
        let value = bytes(value.cast::<u8>().cast_const(), size as usize)?;
        function(which)?.old_launch.state().put(offset, &value)
    }

    fn cuLaunch(which: CUfunction) {
        grid(which, [1, 1], null_mut())
    }

    fn cuLaunchGrid(which: CUfunction, width: c_int, height: c_int) {
        grid(which, [width, height], null_mut())
    }

    fn cuLaunchGridAsync(which: CUfunction, width: c_int, height: c_int, stream: CUstream) {
        grid(which, [width, height], stream)
    }
}

fn grid(which: CUfunction, grid: [c_int; 2], stream: CUstream) -> R {
    let [Ok(width), Ok(height)] = grid.map(u32::try_from) else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let function = function(which)?;
    let state = function.old_launch.state().clone();
    let shape = Shape {
        grid: [width, height, 1],
        block: state.block,
        dynamic_shared: state.shared,
        cluster: None,
        cooperative: false,
    };
    let parameters = state.clone().extra();
    let mut extra = parameters.list.map(with_exposed_provenance_mut::<c_void>);
    launch(DefaultStream::Legacy, which, shape, stream, null_mut(), extra.as_mut_ptr(), &LaunchEdges::default())?;
    // A launch in this old form does not change the stored state.
    *function.old_launch.state() = state;
    Ok(())
}
