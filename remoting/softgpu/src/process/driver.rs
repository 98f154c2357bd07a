//! The driver as a whole: its life, its devices and the tables of everything that has a handle.

use crate::check;
use crate::engine::{Textures, ThreadPool};
use crate::ffi::{R, print};
use crate::kernels::code::{Function, KernelHandle, Library, Module};
use crate::kernels::link::Link;
use crate::kernels::rules::{self, Rules};
use crate::memory::allocations::{Allocation, Kind, Memory};
use crate::memory::arrays::{Array, Described};
use crate::memory::frames::Frames;
use crate::memory::physical::Physical;
use crate::memory::pool::Pool;
use crate::process::config::Config;
use crate::process::context::Context;
use crate::process::device::Device;
use crate::process::handles::{self, Table};
use crate::process::model::Model;
use crate::process::signals;
use crate::streams::conditions::Condition;
use crate::streams::stream::{Event, Stream};
use crate::streams::work::{Executable, Work};
use driverapi::context_storage;
use driverapi::errors::*;
use driverapi::forks::Owner;
use driverapi::managed::Advised;
use driverapi::of_thread::{OfThreads, Own};
use driverapi::types::CUdevice;
use graphs::Registry;
use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

pub struct Driver {
    pub config: Config,
    /// The file that plays the devices' memory, if there is one.
    pub frames: Option<Arc<Frames>>,
    /// The rules for what a null GPU writes in place of kernels, if any.
    pub rules: Option<Rules>,
    pub devices: Vec<Arc<Device>>,
    pub memory: Memory,
    pub contexts: Table<Context>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub libraries: Table<Library>,
    pub kernels: Table<KernelHandle>,
    pub links: Table<Link>,
    pub pools: Table<Pool>,
    pub arrays: Table<Array>,
    pub described: Table<Described>,
    pub textures: Textures,
    /// The conditions by the addresses of their values.
    pub conditions: Table<Condition>,
    pub physical: Table<Physical>,
    /// The advice for managed memory, by the allocation's identity.
    pub advised: Mutex<HashMap<u64, Advised>>,
    pub graphs: Registry<Work>,
    pub executables: Table<Executable>,
    /// Address ranges handed out by `cuMemAddressReserve`: base to length.
    pub reservations: Mutex<HashMap<u64, u64>>,
    pub workers: ThreadPool,
    pub start: Instant,
    primaries: Vec<Mutex<Primary>>,
    current_pools: Vec<Mutex<usize>>,
}

/// The number of times that a device's primary context is retained, and the flags for its next life.
#[derive(Default)]
struct Primary {
    retained: usize,
    flags: u32,
}

static DRIVER: OnceLock<R<Driver>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
static OWNER: Owner = Owner::nobody();

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Release);
}

/// Handles of the contexts that each thread pushed; the last one is current.
static STACKS: OfThreads<Vec<usize>> = OfThreads::new(drop);

thread_local! {
    static STACK: Own<Vec<usize>> = const { Cell::new(None) };
    /// Whether this thread is inside a stream callback, where CUDA may not be called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The settings of the running driver; before `cuInit`, as the environment has them now.
pub fn config() -> Config {
    match DRIVER.get() {
        Some(Ok(driver)) => driver.config.clone(),
        _ => read_config(),
    }
}

fn read_config() -> Config {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Config::read(|name| std::env::var(name).ok(), cpus)
}

/// `cuInit`.
pub fn init() -> R {
    check_process()?;
    let driver = DRIVER.get_or_init(|| {
        let driver = Driver::new(read_config())?;
        if driver.model().null {
            tell_that_nothing_runs(&driver);
        }
        check::start(driver.config.check.as_deref());
        OWNER.take();
        signals::watch_forks(in_child);
        Ok(driver)
    });
    driver.as_ref().map(|_| ()).map_err(|&code| code)
}

/// The first line of a process that uses a null GPU.
fn tell_that_nothing_runs(driver: &Driver) {
    let (name, file) = (&driver.model().name, driver.config.rules.as_deref().unwrap_or_default());
    let rules = driver.rules.as_ref();
    let rules = rules.map(|rules| format!("; {} rules of {}={file} write numbers", rules.len(), rules::FILE_ENV));
    let rules = rules.unwrap_or_default();
    print(&format!("remotegpu: {name}: no kernel runs on this GPU; all results are meaningless{rules}"));
}

fn check_process() -> R {
    if FORKED.load(Ordering::Acquire) || OWNER.is_parent() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if signals::has_ended() {
        return Err(CUDA_ERROR_DEINITIALIZED);
    }
    Ok(())
}

/// The driver, for every call but the few that need no `cuInit`.
pub fn driver() -> R<&'static Driver> {
    check_process()?;
    if IN_CALLBACK.try_with(Cell::get).unwrap_or(false) {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    DRIVER.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?.as_ref().map_err(|&code| code)
}

/// Runs a function of the program on a stream's thread.
pub fn in_callback(function: impl FnOnce()) {
    IN_CALLBACK.set(true);
    check::host_function(function);
    IN_CALLBACK.set(false);
}

/// Returns the calling thread's context; an error if there is none or it has failed.
pub fn current() -> R<Arc<Context>> {
    let context = current_even_if_faulted()?;
    context.check()?;
    Ok(context)
}

pub fn current_even_if_faulted() -> R<Arc<Context>> {
    let driver = driver()?;
    let id = current_id().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    driver.contexts.get(id).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

pub fn current_id() -> Option<usize> {
    STACKS.with(&STACK, |stack| stack.last().copied())
}

pub fn push(context: usize) {
    STACKS.with(&STACK, |stack| stack.push(context));
}

pub fn pop() -> Option<usize> {
    STACKS.with(&STACK, Vec::pop)
}

impl Driver {
    fn new(config: Config) -> R<Driver> {
        let cards = config.visible_devices();
        if cards.is_empty() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        let devices: Vec<Arc<Device>> =
            cards.iter().enumerate().map(|(ordinal, &card)| Arc::new(Device::new(&config, card, ordinal))).collect();
        let frames = config.physical.as_ref().map(|path| Frames::open(path, config.memory, config.uuids.len()));
        let rules = config.rules.as_ref().map(|file| Rules::open(file, config.tally.as_deref()));
        let rules = rules.transpose().map_err(|why| {
            print(&format!("remotegpu: {why}"));
            CUDA_ERROR_INVALID_VALUE
        })?;
        let pools = Table::default();
        for device in &devices {
            pools.insert(device.pool, Arc::new(Pool::new(device.pool, device.ordinal, 0)));
        }
        Ok(Driver {
            memory: Memory::new(devices.clone())?,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            links: Table::default(),
            arrays: Table::default(),
            described: Table::default(),
            textures: Textures::default(),
            conditions: Table::default(),
            physical: Table::default(),
            advised: Mutex::default(),
            graphs: Registry::new(handles::mint),
            executables: Table::default(),
            reservations: Mutex::default(),
            workers: ThreadPool::new(config.threads.saturating_sub(1)),
            start: Instant::now(),
            primaries: devices.iter().map(|_| Mutex::default()).collect(),
            current_pools: devices.iter().map(|device| Mutex::new(device.pool)).collect(),
            pools,
            devices,
            frames: frames.transpose()?,
            rules,
            config,
        })
    }

    /// The GPU model that every device reports.
    pub fn model(&self) -> &'static Model {
        self.config.profile.model
    }

    pub fn device(&self, ordinal: CUdevice) -> R<&Arc<Device>> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    fn primary(&self, device: &Device) -> MutexGuard<'_, Primary> {
        self.primaries[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn retain_primary(&self, device: &Arc<Device>) -> R<usize> {
        let mut primary = self.primary(device);
        if self.contexts.get(device.primary).is_none() {
            let profile = self.config.profile.clone();
            let context = Context::new(device.primary, Arc::clone(device), primary.flags, profile, true)?;
            self.contexts.insert(device.primary, Arc::new(context));
        }
        primary.retained += 1;
        Ok(device.primary)
    }

    /// Some context; if there is none, the first device's primary one, which is retained from then on.
    pub fn any_context(&self) -> R<Arc<Context>> {
        if let Some(context) = self.contexts.all().into_iter().next() {
            return Ok(context);
        }
        let device = self.devices.first().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.contexts.get(self.retain_primary(device)?).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub fn release_primary(&self, device: &Device) -> R {
        let mut primary = self.primary(device);
        primary.retained = primary.retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if primary.retained == 0 { self.end_primary(device, false) } else { Ok(()) }
    }

    /// Ends the primary context; the next retain starts a new one. As CUDA documents, that releases nothing: each
    /// holder still has to release the context. All its allocations are destroyed: those from pools, too (not
    /// measured).
    pub fn reset_primary(&self, device: &Device) -> R {
        let _primary = self.primary(device);
        self.end_primary(device, true)
    }

    /// Ends the primary context if a reset has not done so. The caller holds the device's lock.
    fn end_primary(&self, device: &Device, pools: bool) -> R {
        if self.contexts.get(device.primary).is_none() {
            return Ok(());
        }
        self.end_context(device.primary, pools)
    }

    pub fn primary_state(&self, device: &Device) -> (u32, bool) {
        let primary = self.primary(device);
        let context = self.contexts.get(device.primary);
        let flags = context.as_ref().map_or(primary.flags, |context| context.flags.load(Ordering::Relaxed));
        (flags, context.is_some())
    }

    pub fn set_primary_flags(&self, device: &Device, flags: u32) {
        self.primary(device).flags = flags;
        if let Some(context) = self.contexts.get(device.primary) {
            context.flags.store(flags, Ordering::Relaxed);
        }
    }

    /// Whether a handle names a context, be it a primary context that is not alive now.
    pub fn is_context(&self, id: usize) -> bool {
        self.contexts.get(id).is_some() || self.devices.iter().any(|device| device.primary == id)
    }

    pub fn create_context(&self, device: &Arc<Device>, flags: u32) -> R<usize> {
        let id = handles::mint();
        let context = Context::new(id, Arc::clone(device), flags, self.config.profile.clone(), false)?;
        self.contexts.insert(id, Arc::new(context));
        Ok(id)
    }

    /// Stops a context's work and frees all that belongs to it. Memory of pools is the device's and stays, unless
    /// `pools`.
    pub fn end_context(&self, id: usize, pools: bool) -> R {
        let context = self.contexts.get(id).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.forget_peers(id);
        self.forget_arrays(id);
        self.conditions.remove_where(|condition| condition.is_of(id));
        context_storage::drop_context(ptr::without_provenance_mut(id));
        self.contexts.remove(id).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.stop();
        self.streams.remove_where(|stream| stream.context.id == id);
        self.events.remove_where(|event| event.context == id);
        self.functions.remove_where(|function| function.module.context == id);
        self.modules.remove_where(|module| module.context == id);
        self.libraries.all().iter().for_each(|library| library.forget_context(id));
        let ends = |a: &Allocation| a.context == id && (pools || !matches!(a.kind, Kind::Pooled { .. }));
        for allocation in self.memory.all_where(ends) {
            // Work that waits in the pool's own stream may have been faster.
            let _ = self.release_memory(&allocation);
        }
        Ok(())
    }

    /// Waits until no work that may use the memory is left, as freeing does in CUDA.
    pub fn wait_before_free(&self, allocation: &Allocation) {
        if !self.config.profile.free_waits {
            return;
        }
        for context in self.contexts.all() {
            if allocation.kind.is_host() || context.device.ordinal == allocation.device {
                context.wait_for_all();
            }
        }
    }

    /// The pool that `cuMemAllocAsync` takes from.
    pub fn current_pool(&self, device: &Device) -> MutexGuard<'_, usize> {
        self.current_pools[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
