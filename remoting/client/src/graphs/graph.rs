//! Graphs: the work of their nodes, and how it is sent. The crate `graphs` implements captures.

use crate::Code;
use crate::boundary::refused;
use crate::copies::copy::{self, Copying, Timing, in_one_context};
use crate::copies::fill::{self, Found};
use crate::devices::context::{Context, Live};
use crate::launch::Prepared;
use crate::objects::event::Event;
use crate::objects::host_function::HostCall;
use crate::objects::stream::Target;
use driverapi::constants::*;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::CUDA_MEMSET_NODE_PARAMS;
use graphs::{Captures, Memory, MemoryUse, Registry, SharedGraph, StreamKind};
use protocol::{CopyOnDevice, Launch, Message, Writer};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The next handle of a graph or node. They have a number range of their own, and later nodes have larger handles.
static NEXT: AtomicUsize = AtomicUsize::new(1 << 45);

pub static GRAPHS: LazyLock<Registry<Work>> = LazyLock::new(|| Registry::new(|| NEXT.fetch_add(16, Ordering::Relaxed)));

#[derive(Clone)]
pub enum Work {
    Empty,
    Launch(Arc<Prepared>),
    Copy(Copying),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Host(HostCall),
    /// A child graph as a node.
    Child(SharedGraph<Work>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Allocate(Arc<Memory>),
    Free(Arc<Memory>),
    Conditional(Box<Conditional>),
}

/// The condition of conditional nodes. `conditions` has all existing ones.
pub struct Condition {
    pub handle: u64,
    /// The handle of the graph whose nodes may use the condition.
    pub graph: usize,
    pub context: u64,
    /// The value at the start of each launch, if the condition has one.
    pub default: Option<u32>,
}

/// A node that selects which of its graphs runs, and how often.
pub type Conditional = graphs::Conditional<Work, Condition>;

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
            Work::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
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

    fn bodies(&self) -> &[SharedGraph<Work>] {
        match self {
            Work::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    fn with_bodies(&self, bodies: Vec<SharedGraph<Work>>) -> Work {
        match self {
            Work::Conditional(conditional) => Work::Conditional(Box::new(conditional.with_bodies(bodies))),
            other => other.clone(),
        }
    }
}

impl Work {
    /// Sends the work to a stream.
    ///
    /// # Errors
    /// Those of the corresponding call.
    pub fn send(&self, target: &Target) -> Result<(), Code> {
        match self {
            // The memory was allocated or freed before the launch.
            Work::Empty | Work::Child(_) | Work::Allocate(_) | Work::Free(_) => Ok(()),
            Work::Launch(prepared) => prepared.send(target),
            Work::Copy(copying) => copy::run_on(target, copying, Timing::InGraph),
            Work::Fill(fill) => fill::run(target, fill, Timing::InGraph),
            Work::Host(call) => call.post(target),
            Work::Record(event) => event.record(target, 0),
            Work::Wait(event) => event.hold_up(target, 0),
            Work::Conditional(_) => {
                refused("a conditional node beside host functions, copies from or to the host, or too large")
            }
        }
    }
}

impl Work {
    /// Returns the code and fields of the command for this work, or `None` if it needs the client or more than one
    /// command.
    pub fn command(&self, live: &Live) -> Option<(u32, Vec<u8>)> {
        let mut w = Writer::new();
        match self {
            Work::Launch(prepared) if prepared.context() == live.id && prepared.is_plain() => {
                prepared.put(&mut w);
                Some((Launch::CODE, w.bytes))
            }
            Work::Copy(Copying { to, from, shape }) => {
                w.put(&in_one_context(live, *to, *from, shape)?);
                Some((CopyOnDevice::CODE, w.bytes))
            }
            Work::Fill(fill) => {
                let (number, arguments) = fill::in_rows(fill);
                (fill::find(live, fill) == Ok(Found::Device)).then_some((number, arguments.bytes))
            }
            _ => None,
        }
    }
}

/// Returns the description of a stream for captures.
pub fn for_capture(target: &Target) -> graphs::Stream {
    let kind = match target.flags & CU_STREAM_NON_BLOCKING != 0 {
        _ if target.stream_id == target.live.legacy_stream => StreamKind::Legacy,
        true => StreamKind::NonBlocking,
        false => StreamKind::Blocking,
    };
    graphs::Stream { id: target.stream_id, context: target.live.id, kind }
}

/// Adds work to the graph that a stream is capturing. Returns false if the stream is not capturing; the caller then
/// runs the work.
///
/// # Errors
/// Those of [`Captures::add`], or of `work`.
pub fn capture(target: &Target, work: impl FnOnce() -> Result<Work, Code>) -> Result<bool, Code> {
    GRAPHS.capture(for_capture(target), work)
}

/// Checks that the program may wait for a stream or query it.
///
/// # Errors
/// Those of [`Captures::check_stream`].
pub fn check_stream(target: &Target) -> Result<(), Code> {
    GRAPHS.ask(|captures: &mut Captures<Work>| captures.check_stream(for_capture(target)))
}

/// Checks that a call may wait for a stream.
///
/// # Errors
/// Those of [`check_stream`], and `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if another capture forbids it.
pub fn check_waiting_call(target: &Target) -> Result<(), Code> {
    check_stream(target)?;
    GRAPHS.check_call()
}

/// The addresses of a node's memory. They are freed with their context.
struct Place {
    owner: Arc<Live>,
    address: u64,
}

impl graphs::Place for Place {
    fn back(&self) -> Result<(), Code> {
        if !Context::is_live(&self.owner) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.owner.device.memory.back(&self.owner, self.address)
    }

    fn take_away(&self) {
        if Context::is_live(&self.owner) {
            let _ = self.owner.device.memory.take_away(&self.owner, self.address);
        }
    }

    fn release(&self) {
        if Context::is_live(&self.owner) {
            self.owner.device.memory.give_up(&self.owner, self.address);
        }
    }
}

/// Reserves addresses for a node that allocates memory.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there are no free addresses, `CUDA_ERROR_INVALID_VALUE` if `size` is 0.
pub fn allocate(live: &Arc<Live>, size: u64) -> Result<Arc<Memory>, Code> {
    let address = live.device.memory.reserve(live, size)?;
    let place = Place { owner: Arc::clone(live), address };
    Ok(GRAPHS.memories.add((address, size), live.device.ordinal, place))
}
