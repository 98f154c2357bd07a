//! Loading of modules and libraries into contexts, and unloading.

use super::state::Driver;
use crate::engine::{CompileError, Image, Program};
use crate::ffi::R;
use crate::kernels::code::{Function, KernelHandle, Library, Module, Settings};
use crate::kernels::source::Source;
use crate::memory::allocations::Kind;
use crate::memory::arena;
use crate::process::handles;
use crate::streams::context::Context;
use driverapi::errors::*;
use driverapi::old_launch::OldLaunch;
use driverapi::settings::loads_eagerly;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

impl Library {
    /// Returns the library's module in a context, and loads the module on the first call.
    pub fn module(&self, driver: &Driver, context: &Context) -> R<Arc<Module>> {
        let loaded = self.loaded()?;
        let mut modules = self.modules();
        if let Some(module) = modules.get(&context.id) {
            return Ok(Arc::clone(module));
        }
        let module = driver.place(context, Arc::clone(&loaded.program), Arc::clone(&loaded.settings))?;
        modules.insert(context.id, Arc::clone(&module));
        Ok(module)
    }

    /// Returns the handle of a kernel. Every call returns the same handle.
    pub fn kernel_handle(self: &Arc<Self>, driver: &Driver, index: usize) -> usize {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        *kernels.entry(index).or_insert_with(|| {
            let id = handles::mint();
            driver.kernels.insert(id, Arc::new(KernelHandle { id, library: Arc::clone(self), index }));
            id
        })
    }
}

impl Driver {
    /// Allocates and initialises a program's global variables in a context.
    fn place(&self, context: &Context, program: Arc<Program>, settings: Arc<[Arc<Settings>]>) -> R<Arc<Module>> {
        thread::sleep(Duration::from_millis(context.profile().module_load_millis));
        let (offsets, total) = layout(&program);
        if context.profile().shuffles {
            // This memory is never freed. Its size is random because the heap's address in the process is random.
            let chance = (ptr::from_ref(context).addr() as u64 >> 4) % 1000 + 1;
            self.memory.allocate(chance << 8, Kind::Globals, context.device.ordinal, context.id)?;
        }
        let base = match total {
            0 => 0,
            _ => self.memory.allocate(total, Kind::Globals, context.device.ordinal, context.id)?.base,
        };
        let globals: Vec<u64> = offsets.iter().map(|offset| base + offset).collect();
        let image = Image::new(program, globals.clone());
        for (index, &address) in globals.iter().enumerate() {
            arena::write(address, &image.initial_bytes(index));
        }
        let id = handles::mint();
        let memory = (total > 0).then_some(base);
        let image = Arc::new(image);
        let module =
            Arc::new(Module { id, context: context.id, image, globals, memory, settings, functions: Mutex::default() });
        self.modules.insert(id, Arc::clone(&module));
        Ok(module)
    }

    pub fn load_module(
        &self,
        context: &Context,
        source: &Source,
        max_registers: Option<u32>,
    ) -> Result<Arc<Module>, CompileError> {
        let program = source.compile()?;
        let settings = Settings::for_program(&program, max_registers);
        self.place(context, program, settings)
            .map_err(|code| CompileError { code, log: "no memory for the module's variables".to_owned() })
    }

    /// Frees a module's memory and handles. Queued launches keep the code until they have run.
    pub fn unload(&self, module: &Module) {
        self.modules.remove(module.id);
        self.functions.remove_where(|function| function.module.id == module.id);
        if let Some(allocation) = module.memory.and_then(|base| self.memory.find(base)) {
            self.wait_before_free(&allocation);
            let _ = self.memory.release(allocation.base, |a| a.id == allocation.id);
        }
    }

    pub fn unload_library(&self, library: &Library) {
        self.libraries.remove(library.id);
        self.kernels.remove_where(|kernel| kernel.library.id == library.id);
        let modules: Vec<Arc<Module>> = library.modules().drain().map(|(_, module)| module).collect();
        modules.iter().for_each(|module| self.unload(module));
    }

    /// Returns the function of a module's kernel. Every call returns the same function.
    pub fn function(&self, module: &Arc<Module>, index: usize) -> R<Arc<Function>> {
        let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let id = *functions.entry(index).or_insert_with(handles::mint);
        if let Some(function) = self.functions.get(id) {
            return Ok(function);
        }
        let settings = Arc::clone(module.settings.get(index).ok_or(CUDA_ERROR_INVALID_HANDLE)?);
        let loaded = AtomicBool::new(loads_eagerly());
        let function = Arc::new(Function {
            id,
            module: Arc::clone(module),
            index,
            settings,
            loaded,
            old_launch: OldLaunch::default(),
        });
        self.functions.insert(id, Arc::clone(&function));
        Ok(function)
    }

    /// Returns the function with the handle `id`. CUDA's runtime also passes the handle of a kernel. For a kernel,
    /// returns the kernel's function in `context`.
    pub fn function_or_kernel(&self, id: usize, context: &Context) -> R<Arc<Function>> {
        if let Some(function) = self.functions.get(id) {
            return Ok(function);
        }
        let kernel = self.kernels.get(id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let module = kernel.library.module(self, context)?;
        self.function(&module, kernel.index)
    }
}

/// Returns the offset of each global variable in one block of memory, and the size of the block in bytes.
fn layout(program: &Program) -> (Vec<u64>, u64) {
    let mut end = 0u64;
    let offsets = program
        .globals()
        .iter()
        .map(|global| {
            let at = end.next_multiple_of(global.align.max(16));
            end = at + global.size;
            at
        })
        .collect();
    (offsets, end)
}
