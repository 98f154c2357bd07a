//! The objects for loaded code: modules, libraries, kernels and functions.

use crate::engine::{CompileError, Image, Kernel, Program};
use crate::ffi::R;
use crate::kernels::jit::JitOptions;
use crate::kernels::source::Source;
use crate::streams::context::Context;
use crate::streams::queue::Marker;
use driverapi::errors::*;
use driverapi::old_launch::OldLaunch;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A program whose global variables are placed in a context's memory.
pub struct Module {
    pub id: usize,
    pub context: usize,
    pub image: Arc<Image>,
    pub globals: Vec<u64>,
    pub memory: Option<u64>,
    pub settings: Arc<[Arc<Settings>]>,
    pub functions: Mutex<HashMap<usize, usize>>,
}

/// The attributes that `cuFuncSetAttribute` and `cuKernelSetAttribute` change.
pub struct Settings {
    /// The maximum bytes of dynamic shared memory. A negative value means the default: 48 KiB minus the static shared
    /// memory.
    pub dynamic_shared: AtomicI32,
    pub carveout: AtomicI32,
    pub cache_config: AtomicU32,
    pub cluster: ClusterSettings,
    /// The maximum number of registers for each thread, if the image was loaded with this option.
    pub max_registers: Option<u32>,
}

/// The cluster sizes that a kernel requires and permits. A value of 0 means that the program did not set it.
#[derive(Default)]
pub struct ClusterSettings {
    pub required: [AtomicI32; 3],
    pub non_portable: AtomicI32,
    pub scheduling: AtomicI32,
}

impl Settings {
    pub fn for_program(program: &Program, max_registers: Option<u32>) -> Arc<[Arc<Settings>]> {
        let new = || Settings {
            dynamic_shared: AtomicI32::new(-1),
            carveout: AtomicI32::new(-1),
            cache_config: AtomicU32::new(0),
            cluster: ClusterSettings::default(),
            max_registers,
        };
        program.kernels().iter().map(|_| Arc::new(new())).collect()
    }

    pub fn registers(&self, kernel: &Kernel) -> u32 {
        kernel.registers.min(self.max_registers.unwrap_or(u32::MAX))
    }
}

/// A kernel in a module, which a `CUfunction` names.
pub struct Function {
    pub id: usize,
    pub module: Arc<Module>,
    pub index: usize,
    pub settings: Arc<Settings>,
    pub loaded: AtomicBool,
    /// The state for launches from before CUDA 4.0.
    pub old_launch: OldLaunch,
}

impl Function {
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Loads the code if this is the first use of the function.
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

/// An image that is loaded for all contexts. At the first use in a context, a module is created there. The image is
/// compiled at its first use too, because a large library registers hundreds of images and uses few of them.
pub struct Library {
    pub id: usize,
    source: Source,
    max_registers: Option<u32>,
    program: OnceLock<Result<Loaded, u32>>,
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    pub kernels: Mutex<HashMap<usize, usize>>,
}

pub struct Loaded {
    pub program: Arc<Program>,
    pub settings: Arc<[Arc<Settings>]>,
}

/// The kernel of a library, which a `CUkernel` names.
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

/// Logs a compile error, because a program seldom shows the reason behind an error code. The same error is not logged
/// twice in a row: a library may try a hundred images that all fail in the same way.
pub fn report(error: &CompileError) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != error.log {
        let reason = error.log.trim_end();
        eprintln!("remotegpu: software GPU: cannot load an image (CUDA error {}): {reason}", error.code);
        error.log.clone_into(&mut last);
    }
}

/// Writes a compile error to the buffer that the program passed in the options. Without a buffer, the error is logged.
pub fn report_or_log(error: &CompileError, options: &JitOptions) {
    if !options.write_error(&error.log) {
        report(error);
    }
}

impl Library {
    pub fn new(id: usize, source: Source, max_registers: Option<u32>) -> Library {
        let (program, modules, kernels) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Library { id, source, max_registers, program, modules, kernels }
    }

    /// Compiles the image now. Without this call, the first use compiles it.
    pub fn compile(&self) -> Result<(), CompileError> {
        let program = self.source.compile()?;
        let _ = self.program.set(Ok(Loaded::new(program, self.max_registers)));
        Ok(())
    }

    pub fn loaded(&self) -> R<&Loaded> {
        let result = self.program.get_or_init(|| match self.source.compile() {
            Ok(program) => Ok(Loaded::new(program, self.max_registers)),
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

    pub fn modules(&self) -> MutexGuard<'_, HashMap<usize, Arc<Module>>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget_context(&self, context: usize) {
        self.modules().remove(&context);
    }
}

impl Loaded {
    fn new(program: Arc<Program>, max_registers: Option<u32>) -> Loaded {
        Loaded { settings: Settings::for_program(&program, max_registers), program }
    }
}

impl Module {
    pub fn program(&self) -> &Program {
        self.image.program()
    }

    /// Returns the address and the size in bytes of a global variable that programs may look up.
    pub fn global(&self, name: &str) -> R<(u64, u64)> {
        let index = self.position(name)?;
        Ok((self.globals[index], self.program().globals()[index].size))
    }

    /// Returns the address and size of a managed variable, as [`Module::global`] does for other variables.
    pub fn managed(&self, name: &str) -> R<(u64, u64)> {
        let managed = self.program().globals()[self.position(name)?].managed;
        if managed { self.global(name) } else { Err(CUDA_ERROR_NOT_FOUND) }
    }

    /// Whether the address is in a managed variable, which the host can use too.
    pub fn is_managed(&self, address: u64) -> bool {
        let globals = self.program().globals().iter().zip(&self.globals);
        globals.filter(|(global, _)| global.managed).any(|(global, at)| address.wrapping_sub(*at) < global.size)
    }

    fn position(&self, name: &str) -> R<usize> {
        let globals = self.program().globals();
        // nvcc makes the variables of a whole program internal, and its runtime still looks them up.
        let position = |visible: bool| globals.iter().position(|g| g.visible == visible && g.name == name);
        position(true).or_else(|| position(false)).ok_or(CUDA_ERROR_NOT_FOUND)
    }
}

pub fn find_kernel(program: &Program, name: &str) -> R<usize> {
    program.kernels().iter().position(|kernel| kernel.name == name).ok_or(CUDA_ERROR_NOT_FOUND)
}

/// Fails if a kernel uses PTX that the engine does not support. The reason is logged.
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
