//! Launches: checked as far as the driver would refuse them at the call, then sent without waiting.
//!
//! `check` has the driver's checks (pure), and `events` the events that a launch records itself. A launch that was
//! checked is [`Prepared`], which graphs keep. Called by `abi` and `graphs`. `module` knows the kernel, and `session`
//! sends the command: neither is done here.

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

/// Returns the function of a handle; for a kernel of a library, its function in the context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or why the library cannot be loaded there.
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

/// Sends a launch; `parameters` appends its packed parameters.
///
/// # Errors
/// As [`events::post`].
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
    /// `parameters`: the packed buffer.
    ///
    /// # Errors
    /// Why the kernel is not known.
    pub fn new(function: Arc<Function>, shape: LaunchShape, parameters: Vec<u8>) -> Result<Self, Code> {
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
        checked(&function, &shape)?;
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
    checked(&function, &shape)?;
    // SAFETY: as the caller vouches.
    let parameters = unsafe { find_parameters(kernel, size.kernelParams, size.extra)?.packed(kernel) };
    Prepared::new(function, shape, parameters)
}

/// Refuses what the driver would refuse at the call.
///
/// # Errors
/// The code of a driver.
pub fn checked(function: &Function, shape: &LaunchShape) -> Result<(), Code> {
    let asked = Asked::new(shape);
    let (rules, limits) = (function.launch_rules(), function.module.live.device.launch_limits());
    check::check(&asked, &rules, limits, |question| ask(function, question))
}

/// Asks the driver, unless the same was asked before. Without an answer the driver sees the launch itself.
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
    /// One pointer for each.
    Pointers(*mut *mut c_void),
    /// A buffer that is packed already.
    Packed(*const u8, usize),
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for what is missing.
///
/// # Safety
/// As `cuLaunchKernel` has them.
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
    ///
    /// # Safety
    /// What the program gave is still there.
    pub unsafe fn packed(&self, kernel: &Description) -> Vec<u8> {
        let mut writer = Writer::new();
        // SAFETY: as the caller of the exported function vouches.
        unsafe { self.pack(kernel, &mut writer) };
        writer.bytes
    }

    /// Appends the packed parameter buffer.
    ///
    /// # Safety
    /// What the program gave is still there.
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
