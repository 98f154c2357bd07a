//! Modules and their functions.

mod image;
mod jit;
mod limits;

pub use image::{Image, call_with_images};
pub use jit::JitOptions;
pub use limits::LaunchRules;

use crate::call::Code;
use crate::context::{self, Live};
use crate::handles::{Kind, Table};
use crate::session::{lock, mint};
use crate::{library, log, process};
use driverapi::errors::*;
use driverapi::types::{CUfunction, CUmodule};
use limits::Limits;
use protocol::{KernelInfo, ModuleGlobal, ModuleLoad, ModuleLoaded, ModuleUnload, Symbol, function};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::{Arc, Mutex};

static MODULES: Table<Module> = Table::new(Kind::Module);
static FUNCTIONS: Table<Function> = Table::new(Kind::Function);

/// CUDA 12.1 and later allow 32,764 bytes.
const MAX_PARAMETER_BYTES: usize = 1 << 16;

/// More values of a function's attributes than this are forgotten together.
const MOST_TAKEN: usize = 64;

pub struct Module {
    pub handle: usize,
    pub id: u64,
    pub live: Arc<Live>,
    kernels: Vec<Arc<KernelInfo>>,
    functions: Mutex<HashMap<u32, Arc<Function>>>,
    globals: Mutex<HashMap<String, Symbol>>,
}

pub struct Function {
    pub handle: usize,
    pub module: Arc<Owner>,
    /// Its place in the module's list.
    pub index: u32,
    pub info: Arc<KernelInfo>,
    pub c_name: CString,
    /// Bytes of its parameter buffer.
    pub parameter_bytes: usize,
    attributes: Mutex<HashMap<u32, i32>>,
    /// Attributes and values that the driver took before: it takes them again.
    taken: Mutex<HashSet<(u32, i32)>>,
    /// What every launch is checked against.
    limits: Limits,
}

/// What a function must know of its module, without keeping it loaded.
pub struct Owner {
    pub id: u64,
    pub handle: usize,
    pub live: Arc<Live>,
}

impl Module {
    /// # Errors
    /// The compiler's or loader's code; the log goes to `options`.
    pub fn load(live: &Arc<Live>, image: &Image, options: &JitOptions) -> Result<Arc<Module>, Code> {
        let id = mint();
        let message = ModuleLoad { module: id, context: live.id, hash: image.hash, options: options.values.clone() };
        let reply = call_with_images(live, &message, std::iter::once(image))?;
        let loaded = reply.decode::<ModuleLoaded>();
        let log = loaded.as_ref().map_or("", |loaded| loaded.log.as_str());
        if reply.code != 0 {
            options.report("", log);
            tell(reply.code, log);
            return Err(reply.code);
        }
        options.report(log, "");
        let kernels: Vec<_> = loaded?.kernels.into_iter().map(Arc::new).collect();
        if !kernels.iter().all(|kernel| has_sane_parameters(kernel)) {
            return Err(CUDA_ERROR_UNKNOWN);
        }
        let (functions, globals) = (Mutex::default(), Mutex::default());
        let live = Arc::clone(live);
        MODULES
            .insert(|handle| Arc::new(Module { handle, id, live, kernels, functions, globals }))
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// # Errors
    /// The session's sticky error.
    pub fn unload(&self) -> Result<(), Code> {
        MODULES.remove(self.handle);
        self.forget_functions();
        self.live.session.post(0, &ModuleUnload { module: self.id }).map(drop)
    }

    fn forget_functions(&self) {
        for function in lock(&self.functions).drain() {
            FUNCTIONS.remove(function.1.handle);
        }
    }

    pub fn kernels(&self) -> &[Arc<KernelInfo>] {
        &self.kernels
    }

    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`.
    pub fn function_named(&self, name: &str) -> Result<Arc<Function>, Code> {
        let index = self.kernels.iter().position(|kernel| kernel.name == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        self.function(index as u32)
    }

    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`.
    pub fn function(&self, index: u32) -> Result<Arc<Function>, Code> {
        let info = Arc::clone(self.kernels.get(index as usize).ok_or(CUDA_ERROR_NOT_FOUND)?);
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(&index) {
            return Ok(Arc::clone(function));
        }
        let module = Arc::new(Owner { id: self.id, handle: self.handle, live: Arc::clone(&self.live) });
        let attributes = Mutex::new(info.attributes.iter().copied().collect());
        let parameter_bytes = info.params.iter().map(|p| p.offset as usize + p.size as usize).max().unwrap_or(0);
        let c_name = CString::new(info.name.as_str()).unwrap_or_default();
        let (limits, taken) = (Limits::new(&info.attributes), Mutex::default());
        let make = |handle| {
            Arc::new(Function { handle, module, index, info, c_name, parameter_bytes, attributes, taken, limits })
        };
        let function = FUNCTIONS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        functions.insert(index, Arc::clone(&function));
        Ok(function)
    }

    /// Address and size of a variable.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`.
    pub fn global(&self, name: &str) -> Result<Symbol, Code> {
        if let Some(symbol) = lock(&self.globals).get(name) {
            return Ok(symbol.clone());
        }
        let ask = ModuleGlobal { module: self.id, name: name.to_owned() };
        let symbol: Symbol = self.live.session.call(0, &ask)?.success()?.decode()?;
        lock(&self.globals).insert(name.to_owned(), symbol.clone());
        Ok(symbol)
    }

    fn variable_at(&self, address: u64) -> Option<Symbol> {
        let globals = lock(&self.globals);
        globals.values().find(|symbol| address.wrapping_sub(symbol.address) < symbol.size).cloned()
    }
}

/// One line for the person in front of the program: the code alone rarely says what to do, and few programs ask for
/// the log.
fn tell(code: Code, log: &str) {
    let reason = log.split_whitespace().collect::<Vec<_>>().join(" ");
    if !reason.is_empty() {
        log::error_unless_repeated(&format!("cannot load a module (CUDA error {code}): {reason}"));
    }
}

/// No kernel has more parameters than CUDA allows; a peer that says so is not believed.
fn has_sane_parameters(kernel: &KernelInfo) -> bool {
    kernel.params.iter().all(|p| p.offset.checked_add(p.size).is_some_and(|end| end as usize <= MAX_PARAMETER_BYTES))
}

impl Function {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an attribute that there is not.
    pub fn attribute(&self, attribute: u32) -> Result<i32, Code> {
        lock(&self.attributes).get(&attribute).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub fn max_threads(&self) -> u32 {
        self.limits.now().threads
    }

    pub fn launch_rules(&self) -> LaunchRules {
        self.limits.now()
    }

    /// The attributes whose values are not those of the image, in a fixed order.
    pub fn changed_attributes(&self) -> Vec<(u32, i32)> {
        let attributes = lock(&self.attributes);
        let mut changed: Vec<_> = attributes.iter().map(|(name, value)| (*name, *value)).collect();
        changed.retain(|attribute| !self.info.attributes.contains(attribute));
        changed.sort_unstable();
        changed
    }

    /// Libraries set attributes before each launch, mostly to the value that they have. The worker gives each launch the
    /// values of its arrival, so that only a value that is new to the driver has to be waited for.
    ///
    /// # Errors
    /// The driver's code for a value that it does not take.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<(), Code> {
        let session = &self.module.live.session;
        session.check()?;
        let mut attributes = lock(&self.attributes);
        if attributes.get(&attribute) == Some(&value) {
            return Ok(());
        }
        let mut payload = protocol::Writer::new();
        payload.put(&self.module.id).put(&self.index).put(&attribute).put(&value);
        if lock(&self.taken).contains(&(attribute, value)) {
            session.tell_raw(function::CU_FUNC_SET_ATTRIBUTE, 0, &payload.bytes)?;
        } else {
            session.call_raw(function::CU_FUNC_SET_ATTRIBUTE, 0, &payload.bytes)?.success()?;
            self.note_taken(attribute, value);
        }
        attributes.insert(attribute, value);
        self.limits.note(attribute, value);
        Ok(())
    }

    fn note_taken(&self, attribute: u32, value: i32) {
        let mut taken = lock(&self.taken);
        if taken.len() >= MOST_TAKEN {
            taken.clear();
        }
        taken.insert((attribute, value));
    }
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub fn get(handle: CUmodule) -> Result<Arc<Module>, Code> {
    process::check_initialised()?;
    let module = MODULES.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    context::usable(&module.live)?;
    Ok(module)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub fn function(handle: CUfunction) -> Result<Arc<Function>, Code> {
    process::check_initialised()?;
    FUNCTIONS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// A function, or what a kernel of a library is in the current context: CUDA takes both.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or why the library cannot be loaded here.
pub fn function_or_kernel(handle: CUfunction) -> Result<Arc<Function>, Code> {
    match function(handle) {
        Err(CUDA_ERROR_INVALID_HANDLE) => library::kernel(handle)?.function_in(&context::current()?),
        other => other,
    }
}

/// The variable of a module that lies at this address, as far as the program asked for its address.
pub fn variable_at(address: u64) -> Option<(Arc<Live>, Symbol)> {
    MODULES.find_map(|module| Some((Arc::clone(&module.live), module.variable_at(address)?)))
}

pub fn forget_context(context: u64) {
    for module in MODULES.remove_where(|module| module.live.id == context) {
        module.forget_functions();
    }
}
