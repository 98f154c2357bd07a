//! Launches: checked here as far as the driver would refuse them at the call, then sent without waiting.

use super::launch_events::{self, LaunchEvent};
use crate::call::{Code, DefaultStream, input, inputs};
use crate::memory::{mapped, pinned};
use crate::module::{self, Description, Function};
use crate::stream::{self, Target};
use crate::{library, stream_exports};
use driverapi::attributes::*;
use driverapi::constants::{CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END};
use driverapi::errors::*;
use driverapi::settings;
use driverapi::types::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};
use protocol::{Launch, LaunchAttribute, LaunchShape, Message, Writer};
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
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared);
        launch(function, shape, (stream, default), Vec::new(), &[], parameters, extra)
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |default| {
        let stream = input(config)?.hStream;
        let shape = read_shape(config)?;
        let size = (shape.grid, shape.block, shape.shared);
        let events = launch_events::read(config)?;
        launch(function, size, (stream, default), shape.attributes, &events, parameters, extra)
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
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared);
        let cooperative = LaunchAttribute { id: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value: [1, 0, 0, 0, 0, 0, 0, 0] };
        launch(function, shape, (stream, default), vec![cooperative], &[], parameters, std::ptr::null_mut())
    }
}

/// Grid, block, dynamic shared memory.
type LaunchSize = ([c_uint; 3], [c_uint; 3], c_uint);

/// Reads a launch configuration.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer, or as [`attribute`].
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

/// The attribute as it travels. Events are read by `launch_events`; graph nodes are not provided.
fn attribute(given: &CUlaunchAttribute) -> Option<Result<LaunchAttribute, Code>> {
    match given.id {
        CU_LAUNCH_ATTRIBUTE_IGNORE
        | CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
        | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => None,
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Some(Err(CUDA_ERROR_NOT_SUPPORTED)),
        id => {
            // SAFETY: every byte pattern of the union is one of its padding.
            let bytes = unsafe { given.value.pad };
            let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
            Some(Ok(LaunchAttribute { id, value: std::array::from_fn(word) }))
        }
    }
}

fn resolve(handle: CUfunction, target: &Target) -> Result<Arc<Function>, Code> {
    match module::function(handle) {
        Ok(function) if function.module.live.id == target.live.id => Ok(function),
        Ok(_) => Err(CUDA_ERROR_INVALID_HANDLE),
        Err(CUDA_ERROR_INVALID_HANDLE) => library::kernel(handle)?.function_in(&target.live),
        Err(code) => Err(code),
    }
}

unsafe fn launch(
    handle: CUfunction,
    (grid, block, shared): LaunchSize,
    (stream, default): (CUstream, DefaultStream),
    attributes: Vec<LaunchAttribute>,
    events: &[LaunchEvent],
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    let function = resolve(handle, &target)?;
    let kernel = function.description()?;
    check_shape(&function, &target, grid, block, shared)?;
    check_cooperation(&target, &attributes)?;
    // SAFETY: as the caller of the exported function vouches.
    let source = unsafe { find_parameters(kernel, parameters, extra)? };
    // SAFETY: as the caller of the exported function vouches.
    pinned::before_launch(&target, || unsafe { source.packed(kernel) })?;
    launch_events::post(&target, events, attributes, |attributes| {
        let launch = Launch { module: function.module.id, kernel: function.index, grid, block, shared, attributes };
        let body = |w: &mut Writer| {
            w.put(&launch);
            // SAFETY: as the caller of the exported function vouches.
            unsafe { source.pack(kernel, w) };
        };
        target.live.session.post_work(Launch::CODE, target.lane, body)
    })?;
    if settings::launch_blocking() {
        target.live.session.synchronise_lane(target.lane)?;
        mapped::after_wait(&target.live.session)?;
    }
    Ok(())
}

/// What the driver refuses at the call.
fn check_shape(
    function: &Function,
    target: &Target,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
) -> Result<(), Code> {
    let limits = target.live.device.launch_limits();
    let within = |size: [c_uint; 3], max: &[u32; 3]| size.iter().zip(max).all(|(n, max)| (1..=*max).contains(n));
    let threads = block.iter().fold(1u64, |product, n| product.saturating_mul(u64::from(*n)));
    if !within(grid, &limits.grid) || !within(block, &limits.block) || threads > u64::from(limits.threads) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if threads > u64::from(function.max_threads()) {
        return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    if shared > function.max_dynamic_shared() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// A device that does not offer cooperative launches refuses them at the call, not when the worker gets there.
fn check_cooperation(target: &Target, attributes: &[LaunchAttribute]) -> Result<(), Code> {
    let asked = attributes.iter().any(|a| a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && a.value[0] as u32 != 0);
    let offered = target.live.device.attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0;
    if asked && !offered { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
}

/// Where the values of the parameters are.
enum Parameters {
    None,
    /// One pointer for each.
    Pointers(*mut *mut c_void),
    /// A buffer that is packed already.
    Packed(*const u8, usize),
}

unsafe fn find_parameters(
    kernel: &Description,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Parameters, Code> {
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        match (pointers.is_null(), extra.is_null()) {
            (true, true) if kernel.info.params.is_empty() => Ok(Parameters::None),
            (true, true) => Err(CUDA_ERROR_INVALID_VALUE),
            (false, false) => Err(CUDA_ERROR_INVALID_VALUE),
            (false, true) => Ok(Parameters::Pointers(pointers)),
            (true, false) => find_packed(kernel, extra),
        }
    }
}

/// Reads the list of tags and values that `extra` is.
unsafe fn find_packed(kernel: &Description, extra: *mut *mut c_void) -> Result<Parameters, Code> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    // SAFETY: as the caller of the exported function vouches: the list ends with its end tag.
    unsafe {
        let mut tag = extra;
        loop {
            match (*tag).addr() {
                CU_LAUNCH_PARAM_END => break,
                CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = (*tag.add(1)).cast::<u8>().cast_const(),
                CU_LAUNCH_PARAM_BUFFER_SIZE => size = input((*tag.add(1)).cast::<usize>().cast_const())?,
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            tag = tag.add(2);
        }
    }
    let needed = kernel.parameter_bytes;
    if needed == 0 {
        return Ok(Parameters::None);
    }
    if buffer.is_null() || size < needed {
        Err(CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(Parameters::Packed(buffer, needed))
    }
}

impl Parameters {
    /// The packed parameter buffer.
    unsafe fn packed(&self, kernel: &Description) -> Vec<u8> {
        let mut writer = Writer::new();
        // SAFETY: as the caller of the exported function vouches.
        unsafe { self.pack(kernel, &mut writer) };
        writer.bytes
    }

    /// Appends the packed parameter buffer.
    unsafe fn pack(&self, kernel: &Description, writer: &mut Writer) {
        let start = writer.bytes.len();
        writer.bytes.resize(start + kernel.parameter_bytes, 0);
        let room = &mut writer.bytes[start..];
        // SAFETY: as the caller of the exported function vouches: every pointer is to a value of its parameter's size,
        // and `room` has `parameter_bytes`, which no parameter exceeds.
        unsafe {
            match *self {
                Parameters::None => {}
                Parameters::Packed(buffer, size) => std::ptr::copy_nonoverlapping(buffer, room.as_mut_ptr(), size),
                Parameters::Pointers(pointers) => {
                    for (index, param) in kernel.info.params.iter().enumerate() {
                        let (offset, size) = (param.offset as usize, param.size as usize);
                        let value = (*pointers.add(index)).cast::<u8>().cast_const();
                        if !value.is_null() {
                            std::ptr::copy_nonoverlapping(value, room[offset..offset + size].as_mut_ptr(), size);
                        }
                    }
                }
            }
        }
    }
}
