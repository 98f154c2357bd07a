//! What a stream does: the same for a call that is done in its turn and for a node of a graph.

use crate::copy::{Copy, Fill};
use crate::driver::{Driver, in_callback};
use crate::engine::Fault;
use crate::ffi::R;
use crate::handles;
use crate::launch::Launch;
use crate::stream::{Event, Stream};
use driverapi::types::CUhostFn;
use graphs::{Captures, Dependency, Graph, Mode, SharedGraph};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

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
}

/// A function of the program, with its argument as an address.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

impl Work {
    /// Does it, on a stream's thread. Events are the stream's own business, and children are taken apart before.
    pub fn run(&self) -> Result<(), Fault> {
        match self {
            Work::Launch(launch) => launch.run()?,
            Work::Copy { copy, forgets } => copy.run(*forgets),
            Work::Fill(fill) => fill.run(),
            Work::Host(HostCall { function, data }) => {
                let data = std::ptr::with_exposed_provenance_mut(*data);
                // SAFETY: the program gave this function to be called with this argument.
                in_callback(|| unsafe { function.map_or((), |function| function(data)) });
            }
            Work::Empty | Work::Child(_) | Work::Record(_) | Work::Wait(_) => (),
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By the stream's thread.
    Queued,
    /// By the caller if the stream is idle: short work that never waits.
    AtOnce,
}

/// The captures of the process.
#[derive(Default)]
pub struct CaptureTable {
    captures: Mutex<Captures<Work>>,
    /// Whether anything captures or was captured: a call that finds nothing needs no lock.
    in_use: AtomicBool,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Replaces the calling thread's mode, and gives the one before.
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.try_with(|own| own.replace(mode)).unwrap_or(mode)
}

impl CaptureTable {
    fn lock(&self) -> MutexGuard<'_, Captures<Work>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks or changes the captures, whether there are any or not.
    pub fn with<T>(&self, act: impl FnOnce(&mut Captures<Work>) -> T) -> T {
        let mut captures = self.lock();
        let done = act(&mut captures);
        self.in_use.store(!captures.is_idle(), Ordering::Release);
        done
    }

    /// Asks the captures if there are any.
    pub fn ask<T: Default>(&self, act: impl FnOnce(&mut Captures<Work>) -> R<T>) -> R<T> {
        if self.in_use.load(Ordering::Acquire) { self.with(act) } else { Ok(T::default()) }
    }
}

impl Driver {
    /// Does work in a stream's turn, or adds it to the graph that the stream captures: then `true`.
    pub fn perform(&self, work: Work, how: How, stream: &Stream) -> R<bool> {
        if self.capture(stream, || work.clone())? {
            return Ok(true);
        }
        match (work, how) {
            (Work::Record(event), _) => event.record(stream, self.start)?,
            (Work::Wait(event), _) => event.hold(stream)?,
            (work, How::Queued) => drop(stream.enqueue(move || work.run())?),
            (work, How::AtOnce) => drop(stream.start(move || work.run())?),
        }
        Ok(false)
    }

    /// Adds work to the graph that the stream captures, if it does.
    pub fn capture(&self, stream: &Stream, work: impl FnOnce() -> Work) -> R<bool> {
        let node = self.captures.ask(|captures| {
            let id = handles::mint();
            let added = captures.add(stream.for_capture(), id, || Ok(work()))?;
            let Some(node) = added else { return Ok(None) };
            Ok(captures.graph(stream.for_capture().id).map(|graph| (node, graph)))
        })?;
        let Some((node, graph)) = node else { return Ok(false) };
        self.nodes.insert(node, graph);
        Ok(true)
    }

    /// A call that returns when a stream has done its work is not for one that captures, nor while captures forbid it.
    pub fn check_waiting_call(&self, stream: &Stream) -> R {
        self.captures.ask(|captures| captures.check_stream(stream.for_capture()))?;
        self.check_call()
    }

    /// Whether captures let the calling thread make a call that could disturb them.
    pub fn check_call(&self) -> R {
        self.captures.ask(|captures| captures.check_call(thread::current().id(), MODE.get()))
    }

    /// Adds a node to a graph of the program.
    pub fn add_node(&self, graph: &SharedGraph<Work>, work: Work, after: &[Dependency]) -> R<usize> {
        let id = handles::mint();
        graphs::lock(graph).add(id, work, after)?;
        self.nodes.insert(id, Arc::clone(graph));
        Ok(id)
    }

    /// Makes a graph known by its handle.
    pub fn insert_graph(&self, graph: SharedGraph<Work>) -> usize {
        let id = handles::mint();
        self.graphs.insert(id, graph);
        id
    }

    /// Forgets the handles of a graph's nodes, and its children's.
    pub fn forget_nodes(&self, graph: &SharedGraph<Work>) {
        for (id, node) in graphs::lock(graph).nodes() {
            self.nodes.remove(id);
            if let Work::Child(child) = &node.work {
                self.forget_nodes(child);
            }
        }
    }

    /// Copies a graph, with its children.
    pub fn clone_graph(&self, graph: &Graph<Work>) -> SharedGraph<Work> {
        let copy = |work: &Work| match work {
            Work::Child(child) => Work::Child(self.clone_graph(&graphs::lock(child))),
            other => other.clone(),
        };
        let clone: SharedGraph<Work> = Arc::new(Mutex::new(graph.clone_with(handles::mint, copy)));
        for (id, _) in graphs::lock(&clone).nodes() {
            self.nodes.insert(id, Arc::clone(&clone));
        }
        clone
    }
}

/// An executable graph: a copy that its graph's changes do not reach.
pub struct Executable {
    pub id: usize,
    pub flags: u64,
    pub graph: SharedGraph<Work>,
    /// Where its latest launch ends: launches of one executable do not overlap.
    last: Mutex<Option<crate::queue::Marker>>,
}

impl Executable {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a cycle.
    pub fn new(driver: &Driver, graph: &Graph<Work>, flags: u64) -> R<Executable> {
        works_of(graph)?;
        Ok(Executable { id: handles::mint(), flags, graph: driver.clone_graph(graph), last: Mutex::new(None) })
    }

    /// Queues all of it. Pieces between events are one operation of the stream each, so that a graph takes no more room
    /// in the queue than a launch does.
    pub fn launch(&self, driver: &'static Driver, stream: &Stream) -> R {
        if driver.captures.ask(|captures| Ok(captures.graph(stream.for_capture().id).is_some()))? {
            return driver.capture(stream, || Work::Child(Arc::clone(&self.graph))).map(drop);
        }
        let works = works_of(&graphs::lock(&self.graph))?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = last.take() {
            stream.enqueue_after(vec![before], || Ok(()))?;
        }
        let is_event = |work: &Work| matches!(work, Work::Record(_) | Work::Wait(_));
        for piece in works.chunk_by(|a, b| !is_event(a) && !is_event(b)) {
            match piece {
                [Work::Record(event)] => event.record(stream, driver.start)?,
                [Work::Wait(event)] => event.hold(stream)?,
                works => {
                    let works = works.to_vec();
                    stream.enqueue(move || works.iter().try_for_each(Work::run))?;
                }
            }
        }
        *last = Some(stream.end());
        Ok(())
    }
}

/// What a graph does, in an order that its edges allow, with its children's work in their place.
fn works_of(graph: &Graph<Work>) -> R<Vec<Work>> {
    let mut works = Vec::new();
    for id in graph.order()? {
        match &graph.node(id)?.work {
            Work::Child(child) => works.extend(works_of(&graphs::lock(child))?),
            work => works.push(work.clone()),
        }
    }
    Ok(works)
}
