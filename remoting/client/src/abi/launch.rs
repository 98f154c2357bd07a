//! Launches: checked here as far as the driver would refuse them at the call, then sent without waiting.

use super::launch_check::{self, Asked, Question};
use super::launch_events::{self, LaunchEvent};
use crate::call::{Call, Code, DefaultStream, input, inputs};
use crate::context::Live;
use crate::graph::{self, GRAPHS, Work};
use crate::memory::{mapped, pinned};
use crate::module::{self, Description, Function};
use crate::stream::{self, Target};
use crate::{library, stream_exports};
use driverapi::attributes::*;
use driverapi::constants::{CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END};
use driverapi::errors::*;
use driverapi::settings;
use driverapi::types::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};
use protocol::{Launch, LaunchAttribute, LaunchShape, Message, Writer, function};
use std::ffi::{c_uint, c_void};
use std::ptr::without_provenance_mut;
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
        let events = launch_events::read(config)?;
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
pub fn attribute(given: &CUlaunchAttribute) -> Option<Result<LaunchAttribute, Code>> {
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

fn resolve(handle: CUfunction, live: &Arc<Live>) -> Result<Arc<Function>, Code> {
    match module::function(handle) {
        Ok(function) if function.module.live.id == live.id => Ok(function),
        Ok(_) => Err(CUDA_ERROR_INVALID_HANDLE),
        Err(CUDA_ERROR_INVALID_HANDLE) => library::kernel(handle)?.function_in(live),
        Err(code) => Err(code),
    }
}

unsafe fn launch(
    handle: CUfunction,
    shape: LaunchShape,
    (stream, default): (CUstream, DefaultStream),
    events: &[LaunchEvent],
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    let function = resolve(handle, &target.live)?;
    let kernel = function.description()?;
    check(&function, &shape)?;
    // SAFETY: as the caller of the exported function vouches.
    let source = unsafe { find_parameters(kernel, parameters, extra)? };
    if GRAPHS.ask(|captures| Ok(captures.graph(target.stream_id).is_some()))? {
        // SAFETY: as the caller of the exported function vouches.
        let parameters = unsafe { source.packed(kernel) };
        let prepared = Prepared::new(function, shape, parameters)?;
        // Events of a captured launch would be edges of their own.
        let work =
            || if events.is_empty() { Ok(Work::Launch(Arc::new(prepared))) } else { Err(CUDA_ERROR_NOT_SUPPORTED) };
        return graph::capture(&target, work).map(drop);
    }
    GRAPHS.ask(|captures| captures.check_work(graph::for_capture(&target)))?;
    // SAFETY: as the caller of the exported function vouches.
    pinned::before_launch(&target, || unsafe { source.packed(kernel) })?;
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

fn command(function: &Function, shape: LaunchShape) -> Launch {
    Launch { module: function.module.id, kernel: function.index, shape }
}

fn post(
    target: &Target,
    function: &Function,
    shape: LaunchShape,
    events: &[LaunchEvent],
    parameters: impl FnOnce(&mut Writer),
) -> Result<(), Code> {
    launch_events::post(target, events, shape, |shape| {
        let launch = command(function, shape);
        let body = |w: &mut Writer| {
            w.put(&launch);
            parameters(w);
        };
        target.live.session.post_work(Launch::CODE, target.stream_id, body)
    })
}

/// A launch that was checked, to be sent as often as a graph is launched.
pub struct Prepared {
    pub function: Arc<Function>,
    pub shape: LaunchShape,
    /// The packed parameter buffer.
    parameters: Vec<u8>,
    /// The addresses of the parameters in it.
    pointers: Vec<usize>,
}

impl Prepared {
    fn new(function: Arc<Function>, shape: LaunchShape, parameters: Vec<u8>) -> Result<Self, Code> {
        let start = parameters.as_ptr().expose_provenance();
        let pointers = function.description()?.info.params.iter().map(|each| start + each.offset as usize).collect();
        Ok(Prepared { function, shape, parameters, pointers })
    }

    /// The same launch with other attributes.
    ///
    /// # Errors
    /// As a launch with them.
    pub fn with_attributes(&self, attributes: Vec<LaunchAttribute>) -> Result<Self, Code> {
        let function = Arc::clone(&self.function);
        let shape = LaunchShape { attributes, ..self.shape.clone() };
        check(&function, &shape)?;
        Self::new(function, shape, self.parameters.clone())
    }

    /// One pointer for each parameter, as `cuLaunchKernel` takes them. They are good as long as this is.
    pub fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut().cast()
    }

    /// The id of the context that its kernel is loaded in.
    pub fn context(&self) -> u64 {
        self.function.module.live.id
    }

    /// Whether a node of the driver's graph does the same.
    pub fn is_plain(&self) -> bool {
        let known = |id| {
            matches!(
                id,
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE
                    | CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                    | CU_LAUNCH_ATTRIBUTE_PRIORITY
                    | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
                    | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
                    | CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
                    | CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
        };
        self.shape.attributes.iter().all(|attribute| known(attribute.id))
    }

    /// Whether it is given an address of page-locked memory.
    pub fn names_host_memory(&self) -> bool {
        pinned::names_host_memory(&self.parameters)
    }

    /// Mirrors the page-locked memory that it is given.
    ///
    /// # Errors
    /// As [`pinned::before_launch`].
    pub fn mirror_host_memory(&self, target: &Target) -> Result<(), Code> {
        pinned::before_launch(target, || self.parameters.clone())
    }

    /// The command that launches it, for a node of a graph. There an edge says what it waits for; an ordinary one is
    /// more than the attribute asks for.
    pub fn put(&self, w: &mut Writer) {
        let is_edge = |id| id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut shape = self.shape.clone();
        shape.attributes.retain(|attribute| !is_edge(attribute.id));
        w.put(&command(&self.function, shape));
        w.raw(&self.parameters);
    }

    /// # Errors
    /// As a launch of the same kind.
    pub fn send(&self, target: &Target) -> Result<(), Code> {
        self.mirror_host_memory(target)?;
        post(target, &self.function, self.shape.clone(), &[], |w| {
            w.raw(&self.parameters);
        })
    }
}

/// A kernel node as the program describes it, checked as a launch is.
///
/// # Errors
/// As a launch of the same kind.
///
/// # Safety
/// The parameters are as CUDA documents them for `cuLaunchKernel`.
pub unsafe fn prepare(live: &Arc<Live>, params: &CUDA_KERNEL_NODE_PARAMS) -> Result<Prepared, Code> {
    let size = &params.v1;
    let handle = if size.func.is_null() { params.kern } else { size.func };
    let function = resolve(handle, live)?;
    let kernel = function.description()?;
    let grid = [size.gridDimX, size.gridDimY, size.gridDimZ];
    let block = [size.blockDimX, size.blockDimY, size.blockDimZ];
    let shape = LaunchShape { grid, block, shared: size.sharedMemBytes, attributes: Vec::new() };
    check(&function, &shape)?;
    // SAFETY: as the caller vouches.
    let parameters = unsafe { find_parameters(kernel, size.kernelParams, size.extra)?.packed(kernel) };
    Prepared::new(function, shape, parameters)
}

/// Refuses what the driver would refuse at the call.
fn check(function: &Function, shape: &LaunchShape) -> Result<(), Code> {
    let asked = Asked::new(shape);
    let (rules, limits) = (function.launch_rules(), function.module.live.device.launch_limits());
    launch_check::check(&asked, &rules, limits, |question| ask(function, question))
}

/// Asks the driver, unless it was asked the same before. Without an answer the driver sees the launch itself.
fn ask(function: &Function, question: Question) -> Option<u32> {
    let handle = without_provenance_mut(function.handle);
    let reply = match question {
        Question::LargestCluster { grid, block, shared } => {
            let mut call = Call::on_function(function::CU_OCCUPANCY_MAX_POTENTIAL_CLUSTER_SIZE, handle).ok()?;
            call.put(&LaunchShape { grid, block, shared, attributes: Vec::new() });
            call.reply()
        }
        Question::BlocksPerMultiprocessor { threads, shared } => {
            let mut call =
                Call::on_function(function::CU_OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_MULTIPROCESSOR, handle).ok()?;
            call.put(&(threads as i32)).put(&u64::from(shared));
            call.reply()
        }
    };
    reply.ok()?.decode::<i32>().ok()?.try_into().ok()
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
    let given = |index| {
        // SAFETY: as the caller of the exported function vouches: there is a pointer for each parameter.
        unsafe { !(*pointers.add(index)).is_null() }
    };
    match (pointers.is_null(), extra.is_null()) {
        (false, false) => Err(CUDA_ERROR_INVALID_VALUE),
        _ if kernel.parameter_bytes == 0 => Ok(Parameters::None),
        (true, true) => Err(CUDA_ERROR_INVALID_VALUE),
        (false, true) if !(0..kernel.info.params.len()).all(given) => Err(CUDA_ERROR_INVALID_VALUE),
        (false, true) => Ok(Parameters::Pointers(pointers)),
        // SAFETY: as the caller of the exported function vouches.
        (true, false) => unsafe { find_packed(kernel.parameter_bytes, extra) },
    }
}

/// Reads the list of tags and values that `extra` is. A buffer may leave out the last parameters, which are 0 then.
unsafe fn find_packed(needed: usize, extra: *mut *mut c_void) -> Result<Parameters, Code> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    // SAFETY: as the caller of the exported function vouches: the list ends with its end tag.
    unsafe {
        let mut tag = extra;
        loop {
            match (*tag).addr() {
                CU_LAUNCH_PARAM_END => break,
                CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = (*tag.add(1)).cast::<u8>().cast_const(),
                CU_LAUNCH_PARAM_BUFFER_SIZE => size = Some(input((*tag.add(1)).cast::<usize>().cast_const())?),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            tag = tag.add(2);
        }
    }
    match size {
        Some(0) => Ok(Parameters::None),
        Some(size) if !buffer.is_null() => Ok(Parameters::Packed(buffer, size.min(needed))),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
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
                        std::ptr::copy_nonoverlapping(value, room[offset..offset + size].as_mut_ptr(), size);
                    }
                }
            }
        }
    }
}
