//! Graphs: what their nodes do, and the launch of an executable one. The rules of captures are in the crate `graphs`.

use crate::abi::launch::Prepared;
use crate::abi::{copy, stream as host_functions};
use crate::call::{Call, Code, refused};
use crate::context::{Context, Live};
use crate::copy::{Place, Shape, Side, Timing};
use crate::event::Event;
use crate::handles::{Kind, Table};
use crate::memory::Origin;
use crate::stream::Target;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::{CUDA_MEMSET_NODE_PARAMS, CUhostFn};
use graphs::{Captures, Graph, Memory, MemoryUse, Registry, SharedGraph, StreamKind, in_order};
use protocol::function;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// Handles of graphs and nodes, in a range of their own: later nodes have larger ones.
static NEXT: AtomicUsize = AtomicUsize::new(1 << 45);

pub static GRAPHS: LazyLock<Registry<Work>> = LazyLock::new(|| Registry::new(|| NEXT.fetch_add(16, Ordering::Relaxed)));

static EXECUTABLES: Table<Executable> = Table::new(Kind::Executable);

#[derive(Clone)]
pub enum Work {
    Empty,
    Launch(Arc<Prepared>),
    Copy(Copying),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Host(HostCall),
    /// A graph of its own, as a node.
    Child(SharedGraph<Work>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Allocate(Arc<Memory>),
    Free(Arc<Memory>),
}

#[derive(Clone, Copy)]
pub struct Copying {
    pub to: (Side, Place),
    pub from: (Side, Place),
    pub shape: Shape,
}

/// A function of the program, with its argument as an address.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

impl graphs::Work for Work {
    fn kind(&self) -> u32 {
        match self {
            Work::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Work::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Work::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Work::Allocate(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Work::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
        }
    }

    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)> {
        match self {
            Work::Allocate(memory) => Some((MemoryUse::Allocates, memory)),
            Work::Free(memory) => Some((MemoryUse::Frees, memory)),
            _ => None,
        }
    }

    fn child(&self) -> Option<&SharedGraph<Work>> {
        match self {
            Work::Child(child) => Some(child),
            _ => None,
        }
    }

    fn with_child(&self, child: SharedGraph<Work>) -> Work {
        Work::Child(child)
    }
}

impl Work {
    /// Gives it to a stream.
    fn send(&self, target: &Target) -> Result<(), Code> {
        match self {
            // What becomes of memory was settled before the launch.
            Work::Empty | Work::Child(_) | Work::Allocate(_) | Work::Free(_) => Ok(()),
            Work::Launch(prepared) => prepared.send(target),
            Work::Copy(copying) => copy::run_on(target, copying.to, copying.from, copying.shape, Timing::Asynchronous),
            Work::Fill(fill) => fill_on(target, fill),
            Work::Host(call) => host_functions::post_host_function(target, *call),
            Work::Record(event) => event.record(target, 0),
            Work::Wait(event) => event.hold_up(target, 0),
        }
    }
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, or the session's sticky error.
fn fill_on(target: &Target, fill: &CUDA_MEMSET_NODE_PARAMS) -> Result<(), Code> {
    let number = match fill.elementSize {
        1 => function::CU_MEMSET_D2D8_ASYNC,
        2 => function::CU_MEMSET_D2D16_ASYNC,
        4 => function::CU_MEMSET_D2D32_ASYNC,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let mut call = Call::on_target(number, target);
    let rows = (fill.width, fill.height, fill.pitch);
    let bytes = fill.value.to_le_bytes();
    let element = &bytes[..fill.elementSize as usize];
    let address = call.fills(fill.dst, element, rows, Timing::Asynchronous)?;
    call.put(&address).put(&(fill.pitch as u64));
    match fill.elementSize {
        1 => call.put(&(fill.value as u8)),
        2 => call.put(&(fill.value as u16)),
        _ => call.put(&fill.value),
    };
    call.put(&(fill.width as u64)).put(&(fill.height as u64));
    call.send()
}

/// A stream as captures know it.
pub fn for_capture(target: &Target) -> graphs::Stream {
    let kind = match target.flags & CU_STREAM_NON_BLOCKING != 0 {
        _ if target.stream_id == target.live.legacy_stream => StreamKind::Legacy,
        true => StreamKind::NonBlocking,
        false => StreamKind::Blocking,
    };
    graphs::Stream { id: target.stream_id, context: target.live.id, kind }
}

/// Adds work to the graph that a stream captures into: `false` if it does not, and the caller does the work.
///
/// # Errors
/// As [`Captures::add`], or that of `work`.
pub fn capture(target: &Target, work: impl FnOnce() -> Result<Work, Code>) -> Result<bool, Code> {
    GRAPHS.capture(for_capture(target), work)
}

/// Whether a stream may be waited for or queried.
///
/// # Errors
/// As [`Captures::check_stream`].
pub fn check_stream(target: &Target) -> Result<(), Code> {
    GRAPHS.ask(|captures: &mut Captures<Work>| captures.check_stream(for_capture(target)))
}

/// Whether a call may be made that waits for a stream.
///
/// # Errors
/// As [`check_stream`], and `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if another capture forbids it.
pub fn check_waiting_call(target: &Target) -> Result<(), Code> {
    check_stream(target)?;
    GRAPHS.check_call()
}

/// Memory for a node that allocates it. The device has it from now on, and frees it when nothing has it any more.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_INVALID_VALUE` for no byte.
pub fn allocate(live: &Arc<Live>, size: u64) -> Result<Arc<Memory>, Code> {
    let address = live.device.memory.allocate(live, size, Origin::default())?;
    let owner = Arc::clone(live);
    let release = move |address| {
        // With its context the memory is gone already.
        if Context::is_live(&owner) {
            let _ = owner.device.memory.free(address, None);
        }
    };
    Ok(GRAPHS.memories.add((address, size), live.device.ordinal, release))
}

/// A graph as it was when it was instantiated.
pub struct Executable {
    pub handle: usize,
    pub flags: u64,
    pub graph: SharedGraph<Work>,
    /// Launches of one executable do not overlap: the next waits for the event of the one before.
    last: Mutex<Option<Arc<Event>>>,
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a cycle or unknown flags, `CUDA_ERROR_NOT_SUPPORTED` for launches by the device.
pub fn instantiate(graph: &Graph<Work>, flags: u64) -> Result<Arc<Executable>, Code> {
    const KNOWN: u32 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
        | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
        | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
        return refused("cuGraphInstantiate for launches by the device").and(Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    if flags & !u64::from(KNOWN) != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    in_order(graph)?;
    let graph = GRAPHS.copy(graph);
    let make = |handle| Arc::new(Executable { handle, flags, graph, last: Mutex::new(None) });
    EXECUTABLES.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a handle that is not an executable's.
pub fn executable(handle: usize) -> Result<Arc<Executable>, Code> {
    EXECUTABLES.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// # Errors
/// As [`executable`].
pub fn destroy_executable(handle: usize) -> Result<(), Code> {
    let gone = EXECUTABLES.remove(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    GRAPHS.forget_nodes(&gone.graph);
    let last = crate::session::lock(&gone.last).take();
    if let Some(event) = last.filter(|_| graphs::lock(&gone.graph).holds_objects()) {
        // The program's destructor may only be called when nothing runs that uses the object.
        event.synchronise()?;
    }
    Ok(())
}

impl Executable {
    /// Gives all of it to a stream.
    ///
    /// # Errors
    /// The code of the node that could not be sent.
    pub fn launch(&self, target: &Target) -> Result<(), Code> {
        if capture(target, || Ok(Work::Child(GRAPHS.copy(&graphs::lock(&self.graph)))))? {
            return Ok(());
        }
        let graph = graphs::lock(&self.graph);
        let works = in_order(&graph)?;
        if works.iter().any(|work| matches!(work, Work::Launch(prepared) if prepared.context() != target.live.id)) {
            return refused("cuGraphLaunch of kernels of several contexts");
        }
        GRAPHS.memories.launch(&graph, self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0)?;
        drop(graph);
        let mut last = crate::session::lock(&self.last);
        if let Some(before) = last.as_ref() {
            before.hold_up(target, 0)?;
        }
        works.iter().try_for_each(|work| work.send(target))?;
        let event = match last.take() {
            Some(event) if event.live.id == target.live.id => event,
            _ => crate::event::create_in(&target.live)?,
        };
        event.record(target, 0)?;
        *last = Some(event);
        Ok(())
    }
}
