//! The entry points for launching kernels.

use crate::boundary::{DefaultStream, input, inputs};
use crate::graphs::graph::{self, GRAPHS, Work};
use crate::launch::events::{self, LaunchEvent};
use crate::launch::{Prepared, checked, find_parameters, post, resolve};
use crate::memory::{mapped, pinned};
use crate::objects::stream;
use crate::{Code, stream_exports};
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::settings;
use driverapi::types::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};
use protocol::{LaunchAttribute, LaunchShape};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

stream_exports! {
    fn cuLaunchKernel | cuLaunchKernel_ptsz(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |default| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { grid, block, shared, attributes: Vec::new() };
        launch(function, shape, (stream, default), &[], parameters, extra)
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |default| {
        let stream = input(config)?.hStream;
        let shape = read_shape(config)?;
        let events = events::read(config)?;
        launch(function, shape, (stream, default), &events, parameters, extra)
    }

    fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
    ) |default| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let cooperative = LaunchAttribute { id: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value: [1, 0, 0, 0, 0, 0, 0, 0] };
        let shape = LaunchShape { grid, block, shared, attributes: vec![cooperative] };
        launch(function, shape, (stream, default), &[], parameters, std::ptr::null_mut())
    }
}

/// Reads a launch configuration.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer, or the errors of [`attribute`].
///
/// # Safety
/// `config` is null or valid for a read, and so are its attributes.
pub unsafe fn read_shape(config: *const CUlaunchConfig) -> Result<LaunchShape, Code> {
    // SAFETY: as the caller vouches.
    let (c, attributes) = unsafe {
        let c = input(config)?;
        (c, inputs(c.attrs, c.numAttrs as usize)?)
    };
    Ok(LaunchShape {
        grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
        block: [c.blockDimX, c.blockDimY, c.blockDimZ],
        shared: c.sharedMemBytes,
        attributes: attributes.iter().filter_map(attribute).collect::<Result<_, _>>()?,
    })
}

/// Converts an attribute to the form that is sent. Returns `None` for events, which `launch::events` reads. Attributes
/// for graph nodes are not supported.
pub fn attribute(given: &CUlaunchAttribute) -> Option<Result<LaunchAttribute, Code>> {
    match given.id {
        CU_LAUNCH_ATTRIBUTE_IGNORE
        | CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
        | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => None,
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Some(Err(CUDA_ERROR_NOT_SUPPORTED)),
        id => {
            // SAFETY: all bytes of the union are valid as its padding.
            let bytes = unsafe { given.value.pad };
            let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
            Some(Ok(LaunchAttribute { id, value: std::array::from_fn(word) }))
        }
    }
}

/// Launches a function with the program's parameters.
///
/// # Errors
/// The code that the driver would return.
///
/// # Safety
/// Same as for `cuLaunchKernel`.
pub unsafe fn launch(
    handle: CUfunction,
    mut shape: LaunchShape,
    (stream, default): (CUstream, DefaultStream),
    events: &[LaunchEvent],
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    let function = resolve(handle, &target.live)?;
    let kernel = function.description()?;
    checked(&function, &shape)?;
    // SAFETY: as the caller of the exported function vouches.
    let source = unsafe { find_parameters(kernel, parameters, extra)? };
    // SAFETY: as the caller of the exported function vouches.
    function.old_launch.overwrite(shape.block, shape.shared, || unsafe { source.packed(kernel) });
    if GRAPHS.is_capturing(target.stream_id) {
        // SAFETY: as the caller of the exported function vouches.
        let parameters = unsafe { source.packed(kernel) };
        let edges = events::edges(&target, events, &mut shape)?;
        let prepared = Prepared::new(function, shape, parameters)?;
        let work = || Ok(Work::Launch(Arc::new(prepared)));
        return GRAPHS.capture_launch(graph::for_capture(&target), &edges, work).map(drop);
    }
    GRAPHS.ask(|captures| captures.check_work(graph::for_capture(&target)))?;
    // SAFETY: as the caller of the exported function vouches.
    pinned::before_launch(&target, || unsafe { source.packed(kernel) })?;
    // If these events belonged to a capture, they do not any more.
    GRAPHS.ask(|captures| {
        let record = |named: &LaunchEvent| captures.record(named.event.id, graph::for_capture(&target)).map(drop);
        events.iter().try_for_each(record)
    })?;
    post(&target, &function, shape, events, |w| {
        // SAFETY: as the caller of the exported function vouches.
        unsafe { source.pack(kernel, w) };
    })?;
    if settings::launch_blocking() {
        target.live.session.synchronise_stream(target.stream_id)?;
        mapped::after_wait(&target.live.session)?;
    }
    Ok(())
}
