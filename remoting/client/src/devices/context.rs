//! Contexts, and the current context of each thread.

use super::answers::Answers;
use super::handles::{Kind, Table};
use super::platform::{self, Access, Device};
use crate::Code;
use crate::locks::{Ordered, Rank};
use crate::program::process;
use crate::session::{Known, Session, in_callback, lock, mint};
use driverapi::constants::{CU_EVENT_DISABLE_TIMING, CU_EVENT_RECORD_DEFAULT, CU_EVENT_WAIT_DEFAULT};
use driverapi::context_storage;
use driverapi::errors::*;
use driverapi::of_thread::{OfThreads, Own};
use driverapi::rules::{Rule, kept};
use driverapi::types::CUcontext;
use protocol::{ContextCreate, ContextDestroy, EventCreate, EventRecord, StreamCreate, StreamWaitEvent};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

static CONTEXTS: Table<Context> = Table::new(Kind::Context);

/// The greatest and the least priority that streams can have, as CUDA numbers them. A greater priority has a lower
/// number.
pub const GREATEST_PRIORITY: i32 = -5;
pub const LEAST_PRIORITY: i32 = 0;

/// A context of the program. A primary context keeps its handle when it becomes inactive and active again.
pub struct Context {
    pub handle: usize,
    pub ordinal: i32,
    pub is_primary: bool,
    pub flags: AtomicU32,
    live: RwLock<Option<Arc<Live>>>,
    /// The reference count. For a primary context it counts retains; for another context it counts its creation and
    /// attachments.
    retained: Ordered<u32>,
}

type End = fn(&Arc<Live>);

/// The bytes that the device's driver takes for a context, as charged to the share. `memory::taken` changes them.
#[derive(Default)]
pub struct Taken {
    /// The bytes for each limit that the program set.
    pub limits: Mutex<BTreeMap<u32, u64>>,
    pub modules: Mutex<u64>,
}

/// A context that exists on the appliance.
pub struct Live {
    pub id: u64,
    pub handle: usize,
    pub device: &'static Device,
    pub session: Arc<Session>,
    /// The id of the legacy default stream.
    pub legacy_stream: u64,
    /// The number of the command up to which all commands are known to be complete.
    synchronised: AtomicU64,
    copies: CopyMark,
    /// The cached answers of the context's driver.
    pub answers: Answers,
    pub taken: Taken,
    /// The contexts whose devices' memory this context may access.
    pub peers: Ordered<HashMap<u64, Access>>,
    /// Streams of the library that nothing uses at the moment.
    pub spare_streams: Mutex<Vec<u64>>,
    /// The functions to call when the context is destroyed, one for each kind of object in the context.
    ends: Mutex<Vec<End>>,
    /// The first error of these functions, or 0. The call that destroys the context returns it.
    ended: AtomicU32,
}

/// The last copy whose call has returned although the copy may still run. The program considers it complete, so streams
/// that do not wait for the legacy stream first wait for this event.
#[derive(Default)]
struct CopyMark {
    event: OnceLock<u64>,
    /// The generation of the last record, and the number of the command that records it.
    record: Mutex<(u64, u64)>,
    generation: AtomicU64,
}

impl Live {
    /// Registers `end`, a function that removes all objects of one kind from the context. It is called when the context
    /// is destroyed, before the appliance destroys it. Each function that creates an object in a context must call
    /// this.
    pub fn at_end(&self, end: End) {
        let mut ends = lock(&self.ends);
        if !ends.iter().any(|known| std::ptr::fn_addr_eq(*known, end)) {
            ends.push(end);
        }
    }

    /// Notes the error of a function that [`Live::at_end`] registered.
    pub fn note_end(&self, ended: Result<(), Code>) {
        let _ = self.ended.compare_exchange(0, ended.err().unwrap_or(0), SeqCst, SeqCst);
    }

    /// Returns whether all work that could use device memory has completed.
    pub fn is_idle(&self) -> bool {
        self.session.last_work() <= self.synchronised.load(SeqCst)
    }

    /// Waits for all earlier work of the context.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn synchronise(&self) -> Result<(), Code> {
        let last = self.session.last_command();
        self.session.synchronise_context(self.id)?;
        self.synchronised.fetch_max(last, SeqCst);
        Ok(())
    }

    /// Creates a stream and returns its id.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn start_stream(&self, flags: u32, priority: i32) -> Result<u64, Code> {
        let stream = mint();
        self.session.post(0, &StreamCreate { stream, context: self.id, flags, priority })?;
        Ok(stream)
    }

    /// Records that the legacy stream has a copy whose call returns before the copy is complete.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn mark_copy(&self) -> Result<(), Code> {
        let mut record = lock(&self.copies.record);
        let event = match self.copies.event.get() {
            Some(event) => *event,
            None => {
                let event = *self.copies.event.get_or_init(mint);
                let flags = CU_EVENT_DISABLE_TIMING;
                self.session.post(0, &EventCreate { event, context: self.id, flags })?;
                event
            }
        };
        let generation = record.0 + 1;
        let command = EventRecord { event, generation, flags: CU_EVENT_RECORD_DEFAULT };
        *record = (generation, self.session.post(self.legacy_stream, &command)?);
        self.copies.generation.store(generation, SeqCst);
        Ok(())
    }

    /// Makes a stream wait for the copies that the program considers complete. `seen` is the generation of the last
    /// record that this stream has waited for.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn wait_for_copies(&self, stream_id: u64, seen: &AtomicU64) -> Result<(), Code> {
        if self.copies.generation.load(SeqCst) <= seen.load(SeqCst) {
            return Ok(());
        }
        let (generation, command) = *lock(&self.copies.record);
        if let Some(event) = self.copies.event.get()
            && command > self.synchronised()
        {
            let flags = CU_EVENT_WAIT_DEFAULT;
            self.session.post(stream_id, &StreamWaitEvent { event: *event, generation, flags })?;
        }
        seen.fetch_max(generation, SeqCst);
        Ok(())
    }

    /// Returns the number of the command up to which all commands are known to be complete.
    pub fn synchronised(&self) -> u64 {
        self.synchronised.load(SeqCst)
    }

    /// Returns whether command number `command` in a stream of the context is known to be complete.
    pub fn is_complete(&self, stream_id: u64, how: Known, command: u64) -> bool {
        command <= self.synchronised() || command <= self.session.complete_in_stream(stream_id, how)
    }

    /// Returns whether everything that the stream waits for is known to be complete. The legacy stream waits for the
    /// work of all streams.
    pub fn is_stream_complete(&self, stream_id: u64, how: Known) -> bool {
        match stream_id == self.legacy_stream {
            true => self.session.is_legacy_complete(stream_id, how, self.synchronised()),
            false => self.session.is_stream_complete(stream_id, how, self.synchronised()),
        }
    }

    /// Waits for all earlier work of a stream. Needs no round trip if all work is known to be complete and reported.
    /// Calls `meanwhile` while the GPU works.
    ///
    /// # Errors
    /// The code of failed work, or the error of `meanwhile`.
    pub fn wait_for_stream(&self, stream_id: u64, meanwhile: impl Fn() -> Result<(), Code>) -> Result<(), Code> {
        if self.is_stream_complete(stream_id, Known::Told) && self.has_told_all() {
            meanwhile()?;
            return self.session.wait_for_nothing();
        }
        self.session.synchronise_stream_beside(stream_id, meanwhile)
    }

    /// Like [`Live::wait_for_stream`], for all earlier work of the context.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn wait(&self) -> Result<(), Code> {
        if self.has_told_all() { self.session.wait_for_nothing() } else { self.synchronise() }
    }

    /// Returns whether all results are reported and no host function runs. Otherwise, pending work may break the
    /// context, and each wait must report that error.
    fn has_told_all(&self) -> bool {
        !self.session.has_calls() && (self.session.is_quiet(Known::Told, self.synchronised()) || !kept(Rule::IdleQuiet))
    }
}

impl Context {
    /// Returns a new primary context of a device. It is not active yet.
    pub fn primary(ordinal: i32) -> Arc<Context> {
        Context::new(ordinal, true, 0).expect("the table has room for the devices")
    }

    fn new(ordinal: i32, is_primary: bool, flags: u32) -> Option<Arc<Context>> {
        CONTEXTS.insert(|handle| {
            let retained = Ordered::new(Rank::Context, u32::from(!is_primary));
            let (flags, live) = (AtomicU32::new(flags), RwLock::new(None));
            Arc::new(Context { handle, ordinal, is_primary, flags, live, retained })
        })
    }

    /// Returns the context on the appliance.
    ///
    /// # Errors
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED` if it does not exist there. That includes an inactive primary context.
    pub fn live(&self) -> Result<Arc<Live>, Code> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.clone().ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Returns whether the handle still names this context. It does not if the context was destroyed meanwhile.
    pub fn is_live(live: &Arc<Live>) -> bool {
        let now = CONTEXTS.get(live.handle).and_then(|context| context.live().ok());
        now.is_some_and(|now| Arc::ptr_eq(&now, live))
    }

    /// Returns whether the program retains this primary context.
    pub fn is_retained(&self) -> bool {
        *self.retained.lock() > 0
    }

    /// Creates the context on the appliance if it does not exist there. The caller holds the lock `retained`.
    fn ensure_live(&self) -> Result<Arc<Live>, Code> {
        if self.live().is_err() {
            self.activate()?;
        }
        self.live()
    }

    fn activate(&self) -> Result<(), Code> {
        let device = platform::get(self.ordinal)?;
        let session = device.session()?;
        if let Some(other) = all_live().iter().find(|other| other.device.ordinal == self.ordinal) {
            device.memory.trim(other)?;
        }
        let (id, legacy_stream) = (mint(), mint());
        let flags = self.flags.load(SeqCst);
        let create =
            ContextCreate { context: id, device: device.index, flags, primary: self.is_primary, legacy_stream };
        session.post(0, &create)?;
        let synchronised = AtomicU64::new(0);
        let live = Live {
            id,
            handle: self.handle,
            device,
            session,
            legacy_stream,
            synchronised,
            copies: CopyMark::default(),
            peers: Ordered::new(Rank::Peers, HashMap::new()),
            spare_streams: Mutex::default(),
            answers: Answers::default(),
            taken: Taken::default(),
            ends: Mutex::default(),
            ended: AtomicU32::new(0),
        };
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(live));
        Ok(())
    }

    /// Destroys the context on the appliance with everything that belongs to it. If `pools` is set, memory that the
    /// context took from pools is freed, too.
    fn deactivate(&self, pools: bool) -> Result<(), Code> {
        let live = self.live.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(live) = live else { return Ok(()) };
        context_storage::drop_context(without_provenance_mut(self.handle));
        let ends = std::mem::take(&mut *lock(&live.ends));
        ends.iter().for_each(|end| end(&live));
        live.session.end_ring(live.id);
        live.device.memory.free_context(&live, pools);
        let (token, destroyed) = live.session.new_fence();
        live.session.post(0, &ContextDestroy { context: live.id, token })?;
        let limits = std::mem::take(&mut *lock(&live.taken.limits));
        let modules = std::mem::take(&mut *lock(&live.taken.modules));
        live.device.memory.put_back_after(&live, limits.into_values().sum::<u64>() + modules, destroyed, true);
        live.device.memory.give_back_context(&live)?;
        match live.ended.load(SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

/// Returns every context that exists on an appliance.
pub fn all_live() -> Vec<Arc<Live>> {
    CONTEXTS.all().iter().filter_map(|context| context.live().ok()).collect()
}

/// Returns a context for operations that CUDA allows without one: the current context, or any other. If there is none,
/// creates the first device's primary context, without retaining it for the program.
///
/// # Errors
/// The reason why no context can be created.
pub fn any() -> Result<Arc<Live>, Code> {
    match current() {
        Ok(live) => Ok(live),
        Err(_) => one_of(all_live().into_iter().next(), platform::get(0)?),
    }
}

/// Like [`any`], for one device. Prefers the device's primary context.
///
/// # Errors
/// Those of [`any`].
pub fn of_device(device: &Device) -> Result<Arc<Live>, Code> {
    let of_device = |live: &Arc<Live>| live.device.ordinal == device.ordinal;
    let primary = device.primary.live().ok();
    let current = || current().ok().filter(of_device);
    one_of(primary.or_else(current).or_else(|| all_live().into_iter().find(of_device)), device)
}

fn one_of(found: Option<Arc<Live>>, device: &Device) -> Result<Arc<Live>, Code> {
    let live = match found {
        Some(live) => live,
        None => {
            let _retained = device.primary.retained.lock();
            device.primary.ensure_live()?
        }
    };
    usable(&live)?;
    Ok(live)
}

/// Returns the handle of the context with this id, or 0 if it has been destroyed.
pub fn handle_of(id: u64) -> usize {
    all_live().iter().find(|live| live.id == id).map_or(0, |live| live.handle)
}

/// Creates a context for the program, as `cuCtxCreate` does. The caller makes it current.
///
/// # Errors
/// The reason why the device can have no context.
pub fn create(ordinal: i32, flags: u32) -> Result<Arc<Context>, Code> {
    platform::get(ordinal)?;
    let context = Context::new(ordinal, false, flags).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    context.activate().inspect_err(|_| {
        CONTEXTS.remove(context.handle);
    })?;
    Ok(context)
}

/// Destroys a context that the program created.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if the handle does not name such a context.
pub fn destroy(handle: CUcontext) -> Result<(), Code> {
    let context = get(handle)?;
    if context.is_primary {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    let result = context.deactivate(false);
    CONTEXTS.remove(context.handle);
    with_stack(|stack| {
        if stack.last() == Some(&context.handle) {
            stack.pop();
        }
    });
    result
}

/// Adds a reference to the current context, which then needs one more [`detach`] before it is destroyed. Primary
/// contexts are not destroyed by `detach`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if there is no current context.
pub fn attach() -> Result<usize, Code> {
    let context = current_context()?;
    if !context.is_primary {
        *context.retained.lock() += 1;
    }
    Ok(context.handle)
}

/// Drops a reference to a context that the program created. Dropping the last reference destroys the context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if the context is not current.
pub fn detach(handle: CUcontext) -> Result<(), Code> {
    let context = get(handle)?;
    if current_handle() != context.handle {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    if context.is_primary {
        return Ok(());
    }
    let left = {
        let mut retained = context.retained.lock();
        *retained = retained.saturating_sub(1);
        *retained
    };
    if left == 0 { destroy(handle) } else { Ok(()) }
}

/// Returns the context with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if there is none.
pub fn get(handle: CUcontext) -> Result<Arc<Context>, Code> {
    process::check_initialised()?;
    CONTEXTS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_CONTEXT)
}

/// Retains the primary context of a device, and activates it if necessary.
///
/// # Errors
/// The reason why the device can have no context.
pub fn retain_primary(ordinal: i32) -> Result<Arc<Context>, Code> {
    let context = &platform::get(ordinal)?.primary;
    let mut retained = context.retained.lock();
    context.ensure_live()?.session.check()?;
    *retained += 1;
    Ok(Arc::clone(context))
}

/// Releases the primary context of a device. The last release destroys its state.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if it is not retained.
pub fn release_primary(ordinal: i32) -> Result<(), Code> {
    let context = &platform::get(ordinal)?.primary;
    let mut retained = context.retained.lock();
    *retained = retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    if *retained == 0 { context.deactivate(false) } else { Ok(()) }
}

/// Destroys the primary context's state. The next retain creates it again. As CUDA documents, this does not release the
/// context: each holder still has to release it. All allocations are destroyed, also those from pools (not measured).
///
/// # Errors
/// The session's sticky error.
pub fn reset_primary(ordinal: i32) -> Result<(), Code> {
    let context = &platform::get(ordinal)?.primary;
    let _retained = context.retained.lock();
    context.deactivate(true)
}

/// The thread's stack of context handles. The last one is current; 0 stands for no context.
static STACKS: OfThreads<Vec<usize>> = OfThreads::new(drop);

thread_local! {
    static STACK: Own<Vec<usize>> = const { Cell::new(None) };
}

fn with_stack<T>(act: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    STACKS.with(&STACK, act)
}

/// Returns the handle of the current context, or 0.
pub fn current_handle() -> usize {
    with_stack(|stack| stack.last().copied().unwrap_or(0))
}

/// Returns the current context of the calling thread.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if there is none.
pub fn current_context() -> Result<Arc<Context>, Code> {
    process::check_initialised()?;
    let handle = current_handle();
    if handle == 0 {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    CONTEXTS.get(handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

/// Returns the calling thread's current context, if commands can be sent to it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT`, `CUDA_ERROR_CONTEXT_IS_DESTROYED`, a sticky error, or `CUDA_ERROR_NOT_PERMITTED`
/// inside a host function.
pub fn current() -> Result<Arc<Live>, Code> {
    let live = current_context()?.live()?;
    usable(&live)?;
    Ok(live)
}

/// Checks that commands can be sent to this context.
///
/// # Errors
/// Those of [`current`].
pub fn usable(live: &Live) -> Result<(), Code> {
    if in_callback() {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    live.session.check()
}

/// Replaces the calling thread's current context. A null handle leaves the thread without one.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if the handle does not name a context.
pub fn set_current(handle: CUcontext) -> Result<(), Code> {
    process::check_initialised()?;
    let handle = if handle.is_null() { 0 } else { get(handle)?.handle };
    with_stack(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

/// Pushes a context onto the calling thread's stack.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if the handle does not name a context.
pub fn push_current(handle: CUcontext) -> Result<(), Code> {
    let context = get(handle)?;
    with_stack(|stack| stack.push(context.handle));
    Ok(())
}

/// Pops the current context from the calling thread's stack, and returns its handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if the stack is empty.
pub fn pop_current() -> Result<usize, Code> {
    process::check_initialised()?;
    with_stack(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)
}
