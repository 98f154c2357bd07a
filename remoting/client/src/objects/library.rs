//! Libraries: images that the client loads into a context as a module at the first use of a part of the library there.

use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::handles::{Kind, Table};
use crate::memory::variables;
use crate::module::{self, Function, Image, JitOptions, Module};
use crate::program::process;
use crate::session::lock;
use driverapi::errors::*;
use driverapi::types::{CUfunction, CUkernel, CUlibrary};
use protocol::Symbol;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

static LIBRARIES: Table<Library> = Table::new(Kind::Library);
static KERNELS: Table<Kernel> = Table::new(Kind::Kernel);

pub struct Library {
    pub handle: usize,
    image: Image,
    /// The options without log buffers, because the buffers are valid only during the program's call.
    options: JitOptions,
    /// The modules by the id of their context.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
    /// The kernels by their index in the image. The index is the same in every context.
    kernels: Mutex<HashMap<u32, Arc<Kernel>>>,
    /// The id of the context whose managed variables the program uses. Every context has a copy of them.
    managed_in: Mutex<Option<u64>>,
}

pub struct Kernel {
    pub handle: usize,
    pub library: usize,
    pub index: u32,
    pub c_name: CString,
    /// The attributes that the program set, each with its device. They also apply in contexts that are created later.
    settings: Mutex<Vec<(i32, u32, i32)>>,
    /// The functions of the kernel by the id of their context.
    functions: Mutex<Vec<(u64, Arc<Function>)>>,
}

/// Creates a library, and loads it if there is a current context. Without one, an invalid image is detected later, as
/// in CUDA.
///
/// # Errors
/// The reason why the image cannot be loaded in the current context.
pub fn load(image: Image, options: &JitOptions) -> Result<Arc<Library>, Code> {
    process::check_initialised()?;
    let (modules, kernels, managed_in) = (Mutex::default(), Mutex::default(), Mutex::default());
    let options_kept = options.without_logs();
    let make = |handle| Arc::new(Library { handle, image, options: options_kept, modules, kernels, managed_in });
    let library = LIBRARIES.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    if let Ok(live) = context::current() {
        library.load_in(&live, options).inspect_err(|_| {
            LIBRARIES.remove(library.handle);
        })?;
    }
    Ok(library)
}

/// Returns the library with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn get(handle: CUlibrary) -> Result<Arc<Library>, Code> {
    process::check_initialised()?;
    LIBRARIES.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Unloads a library from all contexts.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or the session's sticky error.
pub fn unload(handle: CUlibrary) -> Result<(), Code> {
    get(handle)?;
    let library = LIBRARIES.remove(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    for (_, kernel) in lock(&library.kernels).drain() {
        KERNELS.remove(kernel.handle);
    }
    let modules: Vec<_> = lock(&library.modules).drain().collect();
    modules.iter().try_for_each(|(_, module)| module.unload())
}

fn end_in(live: &Arc<Live>) {
    for library in LIBRARIES.all() {
        lock(&library.modules).remove(&live.id);
        lock(&library.managed_in).take_if(|home| *home == live.id);
        for kernel in lock(&library.kernels).values() {
            lock(&kernel.functions).retain(|(id, _)| *id != live.id);
        }
    }
}

/// Returns the function that a handle names. The handle may also be that of a kernel, as in CUDA: then this returns its
/// function in the current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or the reason why the library cannot be loaded.
pub fn function_or_kernel(handle: CUfunction) -> Result<Arc<Function>, Code> {
    match module::function(handle) {
        Err(CUDA_ERROR_INVALID_HANDLE) => kernel(handle)?.function_in(&context::current()?),
        other => other,
    }
}
/// Returns the kernel with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn kernel(handle: CUkernel) -> Result<Arc<Kernel>, Code> {
    process::check_initialised()?;
    KERNELS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

impl Library {
    /// Returns the module of this library in a context, and loads it if necessary.
    ///
    /// # Errors
    /// The reason why it cannot be loaded.
    pub fn module_in(&self, live: &Arc<Live>) -> Result<Arc<Module>, Code> {
        self.load_in(live, &self.options)
    }

    fn load_in(&self, live: &Arc<Live>, options: &JitOptions) -> Result<Arc<Module>, Code> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&live.id) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(live, &self.image, options)?;
        modules.insert(live.id, Arc::clone(&module));
        live.at_end(end_in);
        Ok(module)
    }

    /// Returns a managed variable, which the program accesses at its address. The first request decides the context in
    /// which the variable lies.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if there is none of this name, or those of [`variables::share`].
    pub fn managed(&self, live: &Arc<Live>, name: &str) -> Result<Symbol, Code> {
        let symbol = self.module_in(live)?.global(name)?;
        if !symbol.managed {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let home = *lock(&self.managed_in).get_or_insert(live.id);
        if home != live.id {
            variables::refuse(name, "another GPU or context of the program has it", CUDA_ERROR_NOT_FOUND)?;
        }
        variables::share(live, name, &symbol)?;
        Ok(symbol)
    }

    /// Returns a module of this library in any context, because its kernels have the same names in all.
    fn any_module(&self) -> Result<Arc<Module>, Code> {
        if let Some(module) = lock(&self.modules).values().next() {
            return Ok(Arc::clone(module));
        }
        self.module_in(&context::any()?)
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`, or the reason why the library cannot be loaded.
    pub fn kernel_named(&self, name: &str) -> Result<Arc<Kernel>, Code> {
        let module = self.any_module()?;
        let index = module.kernels().iter().position(|kernel| kernel == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        self.kernel(&module, index as u32)
    }

    /// Returns all kernels of the library.
    ///
    /// # Errors
    /// The reason why the library cannot be loaded.
    pub fn all_kernels(&self) -> Result<Vec<Arc<Kernel>>, Code> {
        let module = self.any_module()?;
        (0..module.kernels().len() as u32).map(|index| self.kernel(&module, index)).collect()
    }

    fn kernel(&self, module: &Module, index: u32) -> Result<Arc<Kernel>, Code> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(&index) {
            return Ok(Arc::clone(kernel));
        }
        let name = module.kernels().get(index as usize).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let library = self.handle;
        let make = |handle| {
            let (settings, functions) = (Mutex::default(), Mutex::default());
            let c_name = CString::new(name.as_str()).unwrap_or_default();
            Arc::new(Kernel { handle, library, index, c_name, settings, functions })
        };
        let kernel = KERNELS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        kernels.insert(index, Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl Kernel {
    /// Returns the function of this kernel in a context, and loads the library there if necessary.
    ///
    /// # Errors
    /// The reason why the library cannot be loaded.
    pub fn function_in(&self, live: &Arc<Live>) -> Result<Arc<Function>, Code> {
        if let Some((_, function)) = lock(&self.functions).iter().find(|(id, _)| *id == live.id) {
            return Ok(Arc::clone(function));
        }
        let library = LIBRARIES.get(self.library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let function = library.module_in(live)?.function(self.index)?;
        for (_, attribute, value) in lock(&self.settings).iter().filter(|s| s.0 == live.device.ordinal) {
            function.set_attribute(*attribute, *value)?;
        }
        lock(&self.functions).push((live.id, Arc::clone(&function)));
        Ok(function)
    }

    /// Returns the function of this kernel in any context, because the image's information about it is the same in all.
    ///
    /// # Errors
    /// The reason why the library cannot be loaded.
    pub fn any_function(&self) -> Result<Arc<Function>, Code> {
        if let Some((_, function)) = lock(&self.functions).first() {
            return Ok(Arc::clone(function));
        }
        LIBRARIES.get(self.library).ok_or(CUDA_ERROR_INVALID_HANDLE)?.any_module()?.function(self.index)
    }

    /// Sets an attribute for a device. It applies wherever the kernel is loaded there, now or later.
    ///
    /// # Errors
    /// The driver's code, if the driver rejects the value.
    pub fn set_attribute(&self, attribute: u32, value: i32, ordinal: i32) -> Result<(), Code> {
        let loaded: Vec<_> = lock(&self.functions).iter().map(|(_, function)| Arc::clone(function)).collect();
        let here = loaded.iter().filter(|function| function.module.live.device.ordinal == ordinal);
        here.clone().try_for_each(|function| function.set_attribute(attribute, value))?;
        let mut settings = lock(&self.settings);
        settings.retain(|(device, name, _)| (*device, *name) != (ordinal, attribute));
        settings.push((ordinal, attribute, value));
        Ok(())
    }

    /// Returns an attribute of the kernel on a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an unknown attribute.
    pub fn attribute(&self, attribute: u32, ordinal: i32) -> Result<i32, Code> {
        let here = |(_, f): &&(u64, Arc<Function>)| f.module.live.device.ordinal == ordinal;
        let function = lock(&self.functions).iter().find(here).map(|(_, function)| Arc::clone(function));
        if let Some(function) = function {
            return function.attribute(attribute);
        }
        if let Some((_, _, value)) = lock(&self.settings).iter().find(|s| (s.0, s.1) == (ordinal, attribute)) {
            return Ok(*value);
        }
        let function = self.any_function()?;
        let initial = function.description()?.info.attributes.iter().find(|(name, _)| *name == attribute);
        initial.map(|(_, value)| *value).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}
