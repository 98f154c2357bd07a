//! Modules, libraries, kernels and functions.

use crate::arena;
use crate::context::Context;
use crate::driver::Driver;
use crate::engine::{CompileError, Image, Kernel, Program};
use crate::ffi::R;
use crate::handles;
use crate::jit::JitOptions;
use crate::memory::Kind;
use crate::queue::Marker;
use crate::source::Source;
use driverapi::errors::*;
use driverapi::settings::loads_eagerly;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// A program with its globals placed in a context's memory.
pub struct Module {
    pub id: usize,
    pub context: usize,
    pub image: Arc<Image>,
    globals: Vec<u64>,
    memory: Option<u64>,
    settings: Arc<[Arc<Settings>]>,
    functions: Mutex<HashMap<usize, usize>>,
}

/// What `cuFuncSetAttribute` and `cuKernelSetAttribute` change.
pub struct Settings {
    /// Negative: the default, what the static shared memory leaves of 48 KiB.
    pub dynamic_shared: AtomicI32,
    pub carveout: AtomicI32,
    pub cache_config: AtomicU32,
    pub cluster: ClusterSettings,
}

/// What a kernel's clusters may or must be like. 0 where nothing was set.
#[derive(Default)]
pub struct ClusterSettings {
    pub required: [AtomicI32; 3],
    pub non_portable: AtomicI32,
    pub scheduling: AtomicI32,
}

impl Settings {
    fn for_program(program: &Program) -> Arc<[Arc<Settings>]> {
        let new = || Settings {
            dynamic_shared: AtomicI32::new(-1),
            carveout: AtomicI32::new(-1),
            cache_config: AtomicU32::new(0),
            cluster: ClusterSettings::default(),
        };
        program.kernels().iter().map(|_| Arc::new(new())).collect()
    }
}

/// A kernel in a module: what a `CUfunction` stands for.
pub struct Function {
    pub id: usize,
    pub module: Arc<Module>,
    pub index: usize,
    pub settings: Arc<Settings>,
    loaded: AtomicBool,
}

impl Function {
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Loads the code, as the first use of a function does.
    pub fn load(&self, context: &Context) -> R {
        check_supported(self.kernel())?;
        if !self.loaded.swap(true, Ordering::Relaxed) && context.profile().loading_waits {
            context.ends().iter().for_each(Marker::wait);
        }
        Ok(())
    }

    pub fn kernel(&self) -> &Kernel {
        &self.module.image.program().kernels()[self.index]
    }
}

/// An image loaded for all contexts; each context gets a module of it at first use. Compiled at first use, too, so that
/// the hundreds of images that a big library registers cost nothing.
pub struct Library {
    pub id: usize,
    source: Source,
    program: OnceLock<Result<Loaded, u32>>,
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    kernels: Mutex<HashMap<usize, usize>>,
}

struct Loaded {
    program: Arc<Program>,
    settings: Arc<[Arc<Settings>]>,
}

/// What a `CUkernel` stands for.
pub struct KernelHandle {
    pub id: usize,
    pub library: Arc<Library>,
    pub index: usize,
}

impl KernelHandle {
    pub fn kernel(&self) -> R<&Kernel> {
        self.library.program()?.kernels().get(self.index).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn settings(&self) -> R<&Arc<Settings>> {
        self.library.loaded()?.settings.get(self.index).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

/// One line for the person in front of the program: error codes rarely reach them with their reason. Not twice in a
/// row: a library may try a hundred images that all fail alike.
pub fn report(error: &CompileError) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != error.log {
        let reason = error.log.trim_end();
        eprintln!("remotegpu: software GPU: cannot load an image (CUDA error {}): {reason}", error.code);
        error.log.clone_into(&mut last);
    }
}

/// Writes to the log that the program asked for, as a worker does for its client.
pub fn report_or_log(error: &CompileError, options: &JitOptions) {
    if !options.write_error(&error.log) {
        report(error);
    }
}

impl Library {
    pub fn new(id: usize, source: Source) -> Library {
        Library { id, source, program: OnceLock::new(), modules: Mutex::default(), kernels: Mutex::default() }
    }

    /// Compiles now; otherwise the first use does.
    pub fn compile(&self) -> Result<(), CompileError> {
        let program = self.source.compile()?;
        let _ = self.program.set(Ok(Loaded::new(program)));
        Ok(())
    }

    fn loaded(&self) -> R<&Loaded> {
        let result = self.program.get_or_init(|| match self.source.compile() {
            Ok(program) => Ok(Loaded::new(program)),
            Err(error) => {
                report(&error);
                Err(error.code)
            }
        });
        result.as_ref().map_err(|&code| code)
    }

    pub fn program(&self) -> R<&Arc<Program>> {
        Ok(&self.loaded()?.program)
    }

    fn modules(&self) -> MutexGuard<'_, HashMap<usize, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget_context(&self, context: usize) {
        self.modules().remove(&context);
    }

    /// The library's module in a context.
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

    /// The handle of a kernel, the same one each time.
    pub fn kernel_handle(self: &Arc<Self>, driver: &Driver, index: usize) -> usize {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        *kernels.entry(index).or_insert_with(|| {
            let id = handles::mint();
            driver.kernels.insert(id, Arc::new(KernelHandle { id, library: Arc::clone(self), index }));
            id
        })
    }
}

impl Loaded {
    fn new(program: Arc<Program>) -> Loaded {
        Loaded { settings: Settings::for_program(&program), program }
    }
}

impl Module {
    pub fn program(&self) -> &Program {
        self.image.program()
    }

    /// Address and size of a global that programs may look up.
    pub fn global(&self, name: &str) -> R<(u64, u64)> {
        let index = self.position(name)?;
        Ok((self.globals[index], self.program().globals()[index].size))
    }

    /// As [`Module::global`], for those that the host uses, too.
    pub fn managed(&self, name: &str) -> R<(u64, u64)> {
        let managed = self.program().globals()[self.position(name)?].managed;
        if managed { self.global(name) } else { Err(CUDA_ERROR_NOT_FOUND) }
    }

    /// Does a variable that the host uses, too, lie at this address?
    pub fn is_managed(&self, address: u64) -> bool {
        let globals = self.program().globals().iter().zip(&self.globals);
        globals.filter(|(global, _)| global.managed).any(|(global, at)| address.wrapping_sub(*at) < global.size)
    }

    fn position(&self, name: &str) -> R<usize> {
        let globals = self.program().globals();
        // nvcc makes variables of a whole program internal and its runtime still looks them up.
        let position = |visible: bool| globals.iter().position(|g| g.visible == visible && g.name == name);
        position(true).or_else(|| position(false)).ok_or(CUDA_ERROR_NOT_FOUND)
    }
}

pub fn find_kernel(program: &Program, name: &str) -> R<usize> {
    program.kernels().iter().position(|kernel| kernel.name == name).ok_or(CUDA_ERROR_NOT_FOUND)
}

/// A kernel that uses PTX the engine does not execute is refused, with the reason.
fn check_supported(kernel: &Kernel) -> R {
    match &kernel.unsupported {
        None => Ok(()),
        Some(what) => {
            let log = format!("kernel {} uses PTX that the software GPU does not execute: {what}", kernel.name);
            report(&CompileError { code: CUDA_ERROR_INVALID_PTX, log });
            Err(CUDA_ERROR_INVALID_PTX)
        }
    }
}

impl Driver {
    /// Gives a program's globals memory in a context and initialises them.
    fn place(&self, context: &Context, program: Arc<Program>, settings: Arc<[Arc<Settings>]>) -> R<Arc<Module>> {
        thread::sleep(Duration::from_millis(context.profile().module_load_millis));
        let (offsets, total) = layout(&program);
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

    pub fn load_module(&self, context: &Context, source: &Source) -> Result<Arc<Module>, CompileError> {
        let program = source.compile()?;
        let settings = Settings::for_program(&program);
        self.place(context, program, settings)
            .map_err(|code| CompileError { code, log: "no memory for the module's variables".to_owned() })
    }

    /// Frees what a module holds. Its code lives on in launches that are still queued.
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

    /// The handle of a module's kernel, the same one each time.
    pub fn function(&self, module: &Arc<Module>, index: usize) -> R<Arc<Function>> {
        let mut functions = module.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let id = *functions.entry(index).or_insert_with(handles::mint);
        if let Some(function) = self.functions.get(id) {
            return Ok(function);
        }
        let settings = Arc::clone(module.settings.get(index).ok_or(CUDA_ERROR_INVALID_HANDLE)?);
        let loaded = AtomicBool::new(loads_eagerly());
        let function = Arc::new(Function { id, module: Arc::clone(module), index, settings, loaded });
        self.functions.insert(id, Arc::clone(&function));
        Ok(function)
    }

    /// A function for the current context. A kernel's handle may stand in for a function's, as the runtime relies on.
    pub fn function_or_kernel(&self, id: usize, context: &Context) -> R<Arc<Function>> {
        if let Some(function) = self.functions.get(id) {
            return Ok(function);
        }
        let kernel = self.kernels.get(id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let module = kernel.library.module(self, context)?;
        self.function(&module, kernel.index)
    }
}

/// Where each global lies in one block of memory, and how large the block is.
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
