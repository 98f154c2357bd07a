//! The work of a stream: the same for a call that is done in its turn and for a node of a graph.

use crate::check::{self, Operation};
use crate::engine::{Fault, computing};
use crate::ffi::{self, R};
use crate::kernels::launch::Launch;
use crate::process::driver::{Driver, in_callback};
use crate::process::handles;
use crate::streams::conditions::{self, Conditional};
use crate::streams::copy::{Copy, Fill};
use crate::streams::stream::{Event, Stream};
use driverapi::constants::*;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use driverapi::types::CUhostFn;
use graphs::{Backed, Graph, Memory, MemoryUse, SharedGraph, steps};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone)]
pub enum Work {
    Empty,
    Launch(Arc<Launch>),
    Copy {
        copy: Copy,
        forgets: bool,
    },
    Fill(Fill),
    Host(HostCall),
    /// A graph of its own, as a node.
    Child(SharedGraph<Work>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Allocate(Arc<Memory>),
    Free(Arc<Memory>),
    Conditional(Box<Conditional>),
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
            Work::Copy { .. } => CU_GRAPH_NODE_TYPE_MEMCPY,
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
    /// Does the work, on a stream's thread. The stream handles events itself, and child graphs are taken apart before.
    pub fn run(&self) -> Result<(), Fault> {
        match self {
            Work::Launch(launch) => computing(|| launch.run())?,
            Work::Copy { copy, forgets } => computing(|| copy.run(*forgets)),
            Work::Fill(fill) => computing(|| fill.run()),
            Work::Conditional(conditional) => conditions::run(conditional)?,
            Work::Host(HostCall { function, data }) => in_callback(|| {
                if let Some(function) = *function {
                    ffi::call_back(function, *data);
                }
            }),
            // The memory was settled before the launch.
            Work::Empty | Work::Child(_) | Work::Record(_) | Work::Wait(_) | Work::Allocate(_) | Work::Free(_) => (),
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Done by the stream's thread.
    Queued,
    /// Done by the caller if the stream is idle: short work that never waits.
    AtOnce,
}

impl Driver {
    /// Does work in a stream's turn, or adds it to the graph that the stream captures: then `true`.
    pub fn perform(&self, work: Work, how: How, stream: &Stream) -> R<bool> {
        let captured = self.capture(stream, || work.clone())?;
        if !captured {
            self.start(work, how, stream)?;
        }
        Ok(captured)
    }

    /// Does work in a stream's turn.
    pub fn start(&self, work: Work, how: How, stream: &Stream) -> R {
        match (work, how) {
            (Work::Record(event), _) => event.record(stream, self.start)?,
            (Work::Wait(event), _) => event.hold(stream)?,
            (work, How::Queued) => drop(stream.enqueue(move || work.run())?),
            (work, How::AtOnce) => drop(stream.start(move || work.run())?),
        }
        Ok(())
    }

    /// Adds work to the graph that the stream captures, if it does.
    pub fn capture(&self, stream: &Stream, work: impl FnOnce() -> Work) -> R<bool> {
        self.graphs.capture(stream.for_capture(), || Ok(work()))
    }

    /// Checks a call that waits for a stream's work: a stream that captures may not be waited for, nor may any while
    /// captures forbid it.
    pub fn check_waiting_call(&self, stream: &Stream) -> R {
        self.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        self.graphs.check_call()
    }
}

/// A work of a graph, and its operation in the checker.
type Piece = (Work, Option<Arc<Operation>>);

fn run((work, checked): &Piece) -> Result<(), Fault> {
    match checked {
        None => work.run(),
        Some(operation) => check::during(Arc::clone(operation), || work.run()),
    }
}

/// An executable graph: a copy that its graph's changes do not reach.
pub struct Executable {
    pub id: usize,
    pub flags: u64,
    pub graph: SharedGraph<Work>,
    /// The end of its latest launch: launches of one executable do not overlap.
    last: Mutex<Option<crate::streams::queue::Marker>>,
    /// The memory of its nodes.
    _backed: Vec<Backed>,
}

impl Executable {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a cycle or unknown flags, `CUDA_ERROR_NOT_SUPPORTED` for launches by the device,
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn new(driver: &Driver, graph: &Graph<Work>, flags: u64) -> R<Executable> {
        const KNOWN: u32 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
            | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags & !u64::from(KNOWN) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        graph.check_not_moved()?;
        steps(graph)?;
        graphs::check_bodies(graph)?;
        let (backed, graph) = (driver.graphs.memories.back(graph)?, driver.graphs.copy(graph));
        Ok(Executable { id: handles::mint(), flags, graph, last: Mutex::new(None), _backed: backed })
    }

    /// Queues the whole graph. Pieces between events are one operation of the stream each, so that a graph takes no
    /// more room in the queue than a launch does.
    pub fn launch(&self, driver: &'static Driver, stream: &Stream) -> R {
        if driver.graphs.is_capturing(stream.for_capture().id) {
            if graphs::lock(&self.graph).has_conditions() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            return driver.capture(stream, || Work::Child(driver.graphs.embed(&graphs::lock(&self.graph)))).map(drop);
        }
        let graph = graphs::lock(&self.graph);
        let frees_first = self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
        driver.graphs.memories.launch(&graph, frees_first)?;
        // The queue holds no memory: work that releases memory must not wait for itself.
        let steps = steps(&graph)?;
        let mut assigned = Vec::new();
        conditions::of_graph(&graph, &mut assigned);
        drop(graph);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = last.take() {
            stream.enqueue_after(vec![before], || Ok(()))?;
        }
        if !assigned.is_empty() {
            stream.enqueue(move || {
                conditions::assign_defaults(&assigned);
                Ok(())
            })?;
        }
        let checked = self.checked(stream, &steps);
        let works = steps.into_iter().zip(checked).filter_map(|(step, checked)| Some((step.work?, checked)));
        let works: Vec<Piece> = works.filter(|(work, _)| graphs::Work::memory(work).is_none()).collect();
        let is_event = |(work, _): &Piece| matches!(work, Work::Record(_) | Work::Wait(_));
        for piece in works.chunk_by(|a, b| !is_event(a) && !is_event(b)) {
            match piece {
                [(Work::Record(event), _)] => event.record_in_graph(stream, driver.start)?,
                [(Work::Wait(event), _)] => event.hold(stream)?,
                works => {
                    let works = works.to_vec();
                    stream.enqueue(move || works.iter().try_for_each(run))?;
                }
            }
        }
        *last = Some(stream.end());
        Ok(())
    }

    /// The steps as the checker knows them.
    fn checked(&self, stream: &Stream, steps: &[graphs::Step<Work>]) -> Vec<Option<Arc<Operation>>> {
        let Some(checker) = check::checker() else { return vec![None; steps.len()] };
        let as_checked = |step: &graphs::Step<Work>| check::Step {
            after: step.after.iter().map(|(before, _)| *before).collect(),
            records: if let Some(Work::Record(event)) = &step.work { Some(event.id) } else { None },
            waits: if let Some(Work::Wait(event)) = &step.work { Some(event.id) } else { None },
        };
        let steps: Vec<_> = steps.iter().map(as_checked).collect();
        checker.graph(self.id, &stream.place_now(), &steps).into_iter().map(Some).collect()
    }

    /// Waits for the latest launch, if memory or objects of the program go with the graph.
    pub fn wait_before_release(&self) {
        let graph = graphs::lock(&self.graph);
        let uses = graph.uses_memory() || graph.holds_objects();
        drop(graph);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(marker) = last.filter(|_| uses) {
            marker.wait();
        }
    }
}
