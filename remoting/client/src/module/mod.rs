//! Modules and their functions: loading, attributes, variables, unloading.
//!
//! `image` finds device code and sends it to workers that do not have it. `jit` has the compiler's options, and
//! `limits` the limits that launches are checked against. The callers are `abi`, `launch`, `copies` and `objects`. The
//! client compiles nothing; the worker's driver does.

mod image;
mod jit;
mod limits;

pub use image::{Image, Upload, call_with_images};
pub use jit::JitOptions;
pub use limits::LaunchRules;

use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::handles::{Kind, Table};
use crate::devices::memory::synchronous;
use crate::memory::{taken, variables};
use crate::program::{log, process};
use crate::session::{lock, mint};
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::old_launch::OldLaunch;
use driverapi::settings::loads_eagerly;
use driverapi::types::{CUfunction, CUmodule};
use limits::Limits;
use protocol::{KernelDescribe, KernelInfo, ModuleGlobal, ModuleLoad, ModuleLoaded, Symbol, function};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

static MODULES: Table<Module> = Table::new(Kind::Module);
static FUNCTIONS: Table<Function> = Table::new(Kind::Function);
/// All variables whose addresses the program requested lie between these two addresses. So two loads suffice to exclude
/// most other addresses.
static FIRST_VARIABLE: AtomicU64 = AtomicU64::new(u64::MAX);
static END_OF_VARIABLES: AtomicU64 = AtomicU64::new(0);

/// The maximum size of parameters that the client accepts from a worker. CUDA 12.1 and later allow 32,764 bytes.
const MAX_PARAMETER_BYTES: usize = 1 << 16;

/// The maximum number of cached attribute values of a function. When it is reached, all are dropped.
const MOST_TAKEN: usize = 64;

pub struct Module {
    pub handle: usize,
    pub id: u64,
    pub live: Arc<Live>,
    /// The number of bytes of device memory that the module takes.
    bytes: u64,
    /// The names of its kernels.
    kernels: Vec<String>,
    functions: Mutex<HashMap<u32, Arc<Function>>>,
    /// The variables that the program requested. Each has an id that is unique for all memory of the process.
    globals: Mutex<HashMap<String, (Symbol, u64)>>,
}

pub struct Function {
    pub handle: usize,
    pub module: Arc<Owner>,
    /// The index of the function in the module's list.
    pub index: u32,
    pub c_name: CString,
    description: OnceLock<Description>,
    attributes: Mutex<HashMap<u32, i32>>,
    /// The attributes and values that the driver has accepted. It will accept them again.
    taken: Mutex<HashSet<(u32, i32)>>,
    /// The limits that every launch is checked against.
    limits: Limits,
    /// The state for the launch functions from before CUDA 4.0.
    pub old_launch: OldLaunch,
}

/// The properties of a kernel. They are known after its first use, which loads the kernel.
pub struct Description {
    pub info: KernelInfo,
    /// The size of the parameter buffer in bytes.
    pub parameter_bytes: usize,
}

/// The part of a module that its functions need. It does not keep the module loaded.
pub struct Owner {
    pub id: u64,
    pub handle: usize,
    pub live: Arc<Live>,
}

impl Module {
    /// Loads an image into a context.
    ///
    /// # Errors
    /// The compiler's or loader's code. The log is stored in `options`.
    pub fn load(live: &Arc<Live>, image: &Image, options: &JitOptions) -> Result<Arc<Module>, Code> {
        let id = mint();
        let upload = image.for_device(live.device, options);
        let values = options.values.clone();
        let (hash, eager, bytes) = (upload.hash, loads_eagerly(), upload.device_bytes());
        let message = ModuleLoad { module: id, context: live.id, hash, options: values, eager, bytes };
        let ModuleLoaded { kernels, .. } = taken::for_module(live, bytes, || {
            let reply = call_with_images(live, &message, &[upload])?;
            let loaded = reply.decode::<ModuleLoaded>();
            let log = loaded.as_ref().map_or("", |loaded| loaded.log.as_str());
            if reply.code != 0 {
                options.report("", log);
                tell(reply.code, log);
                return Err(reply.code);
            }
            options.report(log, "");
            loaded
        })?;
        let (functions, globals) = (Mutex::default(), Mutex::default());
        live.at_end(end_in);
        let live = Arc::clone(live);
        MODULES
            .insert(|handle| Arc::new(Module { handle, id, live, bytes, kernels, functions, globals }))
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Unloads the module.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn unload(&self) -> Result<(), Code> {
        MODULES.remove(self.handle);
        self.forget_functions();
        let managed: Vec<_> =
            lock(&self.globals).values().map(|(symbol, _)| symbol.clone()).filter(|symbol| symbol.managed).collect();
        managed.iter().for_each(variables::end);
        lock(&self.globals).values().for_each(|(symbol, _)| synchronous::forget(symbol.address));
        taken::unload(&self.live, self.id, self.bytes)
    }

    fn forget_functions(&self) {
        for function in lock(&self.functions).drain() {
            FUNCTIONS.remove(function.1.handle);
        }
    }

    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none.
    pub fn function_named(&self, name: &str) -> Result<Arc<Function>, Code> {
        let index = self.kernels.iter().position(|kernel| kernel == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        self.function(index as u32)
    }

    /// Returns the kernel with this index.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none.
    pub fn function(&self, index: u32) -> Result<Arc<Function>, Code> {
        let name = self.kernels.get(index as usize).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(&index) {
            return Ok(Arc::clone(function));
        }
        let module = Arc::new(Owner { id: self.id, handle: self.handle, live: Arc::clone(&self.live) });
        let c_name = CString::new(name.as_str()).unwrap_or_default();
        let (description, attributes) = (OnceLock::new(), Mutex::default());
        let (limits, taken) = (Limits::default(), Mutex::default());
        let make = |handle| {
            let old_launch = OldLaunch::default();
            Arc::new(Function { handle, module, index, c_name, description, attributes, taken, limits, old_launch })
        };
        let function = FUNCTIONS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        functions.insert(index, Arc::clone(&function));
        Ok(function)
    }

    /// Returns the address and size of a variable.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none of this name.
    pub fn global(&self, name: &str) -> Result<Symbol, Code> {
        if let Some((symbol, _)) = lock(&self.globals).get(name) {
            return Ok(symbol.clone());
        }
        let ask = ModuleGlobal { module: self.id, name: name.to_owned() };
        let symbol: Symbol = self.live.session.call(0, &ask)?.success()?.decode()?;
        lock(&self.globals).entry(name.to_owned()).or_insert_with(|| (symbol.clone(), mint()));
        FIRST_VARIABLE.fetch_min(symbol.address, SeqCst);
        END_OF_VARIABLES.fetch_max(symbol.address.saturating_add(symbol.size), SeqCst);
        Ok(symbol)
    }

    fn variable_at(&self, address: u64) -> Option<(Symbol, u64)> {
        let globals = lock(&self.globals);
        globals.values().find(|(symbol, _)| address.wrapping_sub(symbol.address) < symbol.size).cloned()
    }
}

/// Logs the compiler's or loader's message for the user. Few programs request this log, and the code alone rarely
/// helps.
fn tell(code: Code, log: &str) {
    let reason = log.split_whitespace().collect::<Vec<_>>().join(" ");
    if !reason.is_empty() {
        log::error_unless_repeated(&format!("cannot load a module (CUDA error {code}): {reason}"));
    }
}

/// Returns whether the kernel's parameters fit into CUDA's limit. A worker's answer that exceeds it is invalid.
fn has_sane_parameters(kernel: &KernelInfo) -> bool {
    kernel.params.iter().all(|p| p.offset.checked_add(p.size).is_some_and(|end| end as usize <= MAX_PARAMETER_BYTES))
}

impl Function {
    /// Returns the kernel's properties. The first call loads the kernel, without holding a lock: loading may wait for a
    /// kernel which runs until another thread launches something.
    ///
    /// # Errors
    /// The reason why it cannot be loaded, or the session's sticky error.
    pub fn description(&self) -> Result<&Description, Code> {
        if let Some(description) = self.description.get() {
            return Ok(description);
        }
        let ask = KernelDescribe { module: self.module.id, kernel: self.index };
        let reply = self.module.live.session.call(0, &ask)?;
        if reply.code == CUDA_ERROR_INVALID_PTX {
            let name = self.c_name.to_string_lossy();
            log::error_unless_repeated(&format!(
                "the appliance's GPU does not execute kernel {name} (CUDA error {}); the appliance's log says why",
                reply.code
            ));
        }
        let info = reply.success()?.decode()?;
        if !has_sane_parameters(&info) {
            return Err(CUDA_ERROR_UNKNOWN);
        }
        Ok(self.description.get_or_init(|| {
            *lock(&self.attributes) = info.attributes.iter().copied().collect();
            info.attributes.iter().for_each(|&(attribute, value)| self.limits.note(attribute, value));
            Description { parameter_bytes: info.parameter_bytes(), info }
        }))
    }

    pub fn is_loaded(&self) -> bool {
        loads_eagerly() || self.description.get().is_some()
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an unknown attribute, or those of [`Function::description`].
    pub fn attribute(&self, attribute: u32) -> Result<i32, Code> {
        self.description()?;
        lock(&self.attributes).get(&attribute).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns the maximum number of threads of a block, or 0 before the kernel is loaded.
    pub fn max_threads(&self) -> u32 {
        self.limits.now().threads
    }

    /// Returns the limits for a launch. They are empty before the kernel is loaded.
    pub fn launch_rules(&self) -> LaunchRules {
        self.limits.now()
    }

    /// Returns the attributes whose values differ from those of the image, in a fixed order.
    ///
    /// # Errors
    /// Those of [`Function::description`].
    pub fn changed_attributes(&self) -> Result<Vec<(u32, i32)>, Code> {
        let image = &self.description()?.info.attributes;
        let attributes = lock(&self.attributes);
        let mut changed: Vec<_> = attributes.iter().map(|(name, value)| (*name, *value)).collect();
        changed.retain(|attribute| !image.contains(attribute));
        changed.sort_unstable();
        Ok(changed)
    }

    /// Sets an attribute. Libraries do that before each launch, usually without changing the value. The worker gives
    /// each launch the values at the time of its arrival. So the call waits only for a new value that the driver might
    /// reject.
    ///
    /// # Errors
    /// The driver's code, if the driver rejects the value.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<(), Code> {
        let session = &self.module.live.session;
        session.check()?;
        self.description()?;
        let mut attributes = lock(&self.attributes);
        if attributes.get(&attribute) == Some(&value) {
            return Ok(());
        }
        let mut payload = protocol::Writer::new();
        payload.put(&self.module.id).put(&self.index).put(&attribute).put(&value);
        let fits = may_be_set(attribute, value, &attributes, || {
            self.module.live.device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        });
        if fits || lock(&self.taken).contains(&(attribute, value)) {
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

/// Returns whether every driver accepts this value, as CUDA documents for `cuFuncSetAttribute`: static and dynamic
/// shared memory together fit into the device's largest block, and the carve-out is a hint in percent, or -1 for none.
fn may_be_set(attribute: u32, value: i32, now: &HashMap<u32, i32>, most_shared: impl FnOnce() -> i32) -> bool {
    match attribute {
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => now
            .get(&CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
            .and_then(|fixed| fixed.checked_add(value))
            .is_some_and(|sum| value >= 0 && sum <= most_shared()),
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => (-1..=100).contains(&value),
        _ => false,
    }
}

/// Returns the module with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn get(handle: CUmodule) -> Result<Arc<Module>, Code> {
    process::check_initialised()?;
    let module = MODULES.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    context::usable(&module.live)?;
    Ok(module)
}

/// Returns the function with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn function(handle: CUfunction) -> Result<Arc<Function>, Code> {
    process::check_initialised()?;
    FUNCTIONS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Returns the module's variable that contains this address, if the program has requested its address. Also returns its
/// context and id.
pub fn variable_at(address: u64) -> Option<(Arc<Live>, Symbol, u64)> {
    if address < FIRST_VARIABLE.load(SeqCst) || address >= END_OF_VARIABLES.load(SeqCst) {
        return None;
    }
    MODULES.find_map(|module| {
        let (symbol, id) = module.variable_at(address)?;
        Some((Arc::clone(&module.live), symbol, id))
    })
}

fn end_in(live: &Arc<Live>) {
    for module in MODULES.remove_where(|module| module.live.id == live.id) {
        module.forget_functions();
    }
}
