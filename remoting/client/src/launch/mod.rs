//! Launches. They are checked for errors that the driver would report at the call, then sent without waiting.
//!
//! `check` has these checks (pure functions), and `events` handles events that a launch records itself. [`Prepared`] is
//! a checked launch, which graphs keep. The callers are `abi` and `graphs`. `module` describes the kernel, and
//! `session` sends the command.

pub mod check;
pub mod events;

use crate::Code;
use crate::boundary::input;
use crate::call::Call;
use crate::devices::context::Live;
use crate::memory::pinned;
use crate::module::{self, Description, Function};
use crate::objects::library;
use crate::objects::stream::Target;
use check::{Asked, Question};
use driverapi::attributes::*;
use driverapi::constants::{CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END};
use driverapi::errors::*;
use driverapi::types::{CUDA_KERNEL_NODE_PARAMS, CUfunction};
use events::LaunchEvent;
use protocol::{Launch, LaunchAttribute, LaunchShape, Message, Writer, function};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// Returns the function of a handle. For the handle of a library's kernel, returns its function in the context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or the reason why the library cannot be loaded.
pub fn resolve(handle: CUfunction, live: &Arc<Live>) -> Result<Arc<Function>, Code> {
    match module::function(handle) {
        Ok(function) if function.module.live.id == live.id => Ok(function),
        Ok(_) => Err(CUDA_ERROR_INVALID_HANDLE),
        Err(CUDA_ERROR_INVALID_HANDLE) => library::kernel(handle)?.function_in(live),
        Err(code) => Err(code),
    }
}

fn command(function: &Function, shape: LaunchShape) -> Launch {
    Launch { module: function.module.id, kernel: function.index, shape }
}

/// Sends a launch. `parameters` appends its packed parameters.
///
/// # Errors
/// Those of [`events::post`].
pub fn post(
    target: &Target,
    function: &Function,
    shape: LaunchShape,
    events: &[LaunchEvent],
    parameters: impl FnOnce(&mut Writer),
) -> Result<(), Code> {
    events::post(target, events, shape, |shape| {
        let launch = command(function, shape);
        let body = |w: &mut Writer| {
            w.put(&launch);
            parameters(w);
        };
        target.live.session.post_work(Launch::CODE, target.stream_id, body)
    })
}

/// A checked launch, which can be sent several times. Graphs keep it.
pub struct Prepared {
    pub function: Arc<Function>,
    pub shape: LaunchShape,
    /// The packed parameter buffer.
    parameters: Vec<u8>,
    /// The addresses of the parameters in the buffer.
    pointers: Vec<usize>,
}

impl Prepared {
    /// Returns a launch of `function`. `parameters` is the packed buffer.
    ///
    /// # Errors
    /// The reason why the kernel cannot be loaded.
    pub fn new(function: Arc<Function>, shape: LaunchShape, parameters: Vec<u8>) -> Result<Self, Code> {
        let start = parameters.as_ptr().expose_provenance();
        let pointers = function.description()?.info.params.iter().map(|each| start + each.offset as usize).collect();
        Ok(Prepared { function, shape, parameters, pointers })
    }

    /// Returns the same launch with other attributes.
    ///
    /// # Errors
    /// Those of a launch with these attributes.
    pub fn with_attributes(&self, attributes: Vec<LaunchAttribute>) -> Result<Self, Code> {
        let function = Arc::clone(&self.function);
        let shape = LaunchShape { attributes, ..self.shape.clone() };
        checked(&function, &shape)?;
        Self::new(function, shape, self.parameters.clone())
    }

    /// Returns one pointer for each parameter, as `cuLaunchKernel` takes them. They are valid as long as this object.
    pub fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut().cast()
    }

    /// Returns the id of the context in which the kernel is loaded.
    pub fn context(&self) -> u64 {
        self.function.module.live.id
    }

    /// Returns whether a node of a driver's graph supports all attributes of this launch.
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

    /// Returns whether a parameter contains an address of page-locked memory.
    pub fn names_host_memory(&self) -> bool {
        pinned::names_host_memory(&self.parameters)
    }

    /// Creates mirrors of the page-locked memory that the parameters point to.
    ///
    /// # Errors
    /// Those of [`pinned::before_launch`].
    pub fn mirror_host_memory(&self, target: &Target) -> Result<(), Code> {
        pinned::before_launch(target, || self.parameters.clone())
    }

    /// Writes the launch command for a node of a graph. Removes the serialization attribute, because an edge of the
    /// graph already orders the node at least as strictly.
    pub fn put(&self, w: &mut Writer) {
        let is_edge = |id| id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut shape = self.shape.clone();
        shape.attributes.retain(|attribute| !is_edge(attribute.id));
        w.put(&command(&self.function, shape));
        w.raw(&self.parameters);
    }

    /// Sends the launch to a stream.
    ///
    /// # Errors
    /// Those of a launch of the same kind.
    pub fn send(&self, target: &Target) -> Result<(), Code> {
        self.mirror_host_memory(target)?;
        post(target, &self.function, self.shape.clone(), &[], |w| {
            w.raw(&self.parameters);
        })
    }
}

/// Checks a kernel node of a program as a launch, and returns it.
///
/// # Errors
/// Those of a launch of the same kind.
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
    checked(&function, &shape)?;
    // SAFETY: as the caller vouches.
    let parameters = unsafe { find_parameters(kernel, size.kernelParams, size.extra)?.packed(kernel) };
    Prepared::new(function, shape, parameters)
}

/// Checks a launch for errors that the driver would report at the call.
///
/// # Errors
/// The code that the driver would return.
pub fn checked(function: &Function, shape: &LaunchShape) -> Result<(), Code> {
    let asked = Asked::new(shape);
    let (rules, limits) = (function.launch_rules(), function.module.live.device.launch_limits());
    check::check(&asked, &rules, limits, |question| ask(function, question))
}

/// Sends a query to the driver, unless its answer is cached. Returns `None` if there is no answer; the driver then
/// checks the launch itself.
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

/// The location of the parameters' values.
pub enum Parameters {
    None,
    /// An array with one pointer for each parameter.
    Pointers(*mut *mut c_void),
    /// The address and size of a buffer that is packed already.
    Packed(*const u8, usize),
}

/// Returns where the program has stored the parameters.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if a parameter is missing.
///
/// # Safety
/// The arguments are as CUDA documents them for `cuLaunchKernel`.
pub unsafe fn find_parameters(
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

/// Reads `extra`, a list of tags and values. The buffer may be shorter than `needed`; the missing parameters are then
/// 0.
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
    /// Returns the packed parameter buffer.
    ///
    /// # Safety
    /// The program's memory with the parameters is still valid.
    pub unsafe fn packed(&self, kernel: &Description) -> Vec<u8> {
        let mut writer = Writer::new();
        // SAFETY: as the caller of the exported function vouches.
        unsafe { self.pack(kernel, &mut writer) };
        writer.bytes
    }

    /// Appends the packed parameter buffer to `writer`.
    ///
    /// # Safety
    /// The program's memory with the parameters is still valid.
    pub unsafe fn pack(&self, kernel: &Description, writer: &mut Writer) {
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
