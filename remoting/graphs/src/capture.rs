//! Stream capture: which streams record into a graph instead of working, and what that forbids.
//!
//! The rules are those of the CUDA programming guide, "Creating a Graph Using Stream Capture", and of
//! `cuStreamBeginCapture_v2`, `cuStreamEndCapture`, `cuThreadExchangeStreamCaptureMode`, `cuStreamIsCapturing`. Where
//! they name no code, a comment gives our answer.

use crate::edge::{distinct, merge};
use crate::work::is_kernel;
use crate::{Dependency, Edge, Node, NodeId, Result, SharedGraph, Work, lock};
use driverapi::constants::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
};
use driverapi::errors::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::ThreadId;

#[cfg(test)]
#[path = "capture_tests.rs"]
mod tests;

/// The calls that a thread may make while a capture runs. [`Mode::Global`] forbids most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    #[default]
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a number that is not a mode.
    pub fn from_code(code: u32) -> Result<Mode> {
        match code {
            CU_STREAM_CAPTURE_MODE_GLOBAL => Ok(Mode::Global),
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Ok(Mode::ThreadLocal),
            CU_STREAM_CAPTURE_MODE_RELAXED => Ok(Mode::Relaxed),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub fn code(self) -> u32 {
        match self {
            Mode::Global => CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::ThreadLocal => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// A stream, as far as captures need it. The caller chooses ids and never reuses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    pub id: u64,
    pub context: u64,
    pub kind: StreamKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// The default stream of old, which cannot capture.
    Legacy,
    /// Waits for the legacy stream, and the legacy stream for it.
    Blocking,
    NonBlocking,
}

/// The state of a stream's capture.
pub enum State<W> {
    None,
    Active {
        number: u64,
        graph: SharedGraph<W>,
        dependencies: Vec<Dependency>,
    },
    /// An earlier error invalidated it; only its end is allowed.
    Invalidated {
        number: u64,
    },
}

struct Capture<W> {
    graph: SharedGraph<W>,
    origin: u64,
    mode: Mode,
    thread: ThreadId,
    valid: bool,
    /// The last work of streams that were destroyed since then.
    left: Vec<Dependency>,
}

struct Member {
    capture: u64,
    stream: Stream,
    /// The dependencies of the stream's next node.
    dependencies: Vec<Dependency>,
}

/// The place in a graph of an event that was last recorded in a capturing stream.
struct Recorded {
    capture: u64,
    dependencies: Vec<Dependency>,
}

/// The edges of a captured launch by its attributes, which only launches have.
#[derive(Default)]
pub struct LaunchEdges {
    /// `PROGRAMMATIC_STREAM_SERIALIZATION`: it may begin when the kernel before it in the stream is triggered.
    pub programmatic: bool,
    /// Events that it records: a node that waits for one has this edge from the launch.
    pub events: Vec<(u64, Edge)>,
}

/// All captures of a process.
pub struct Captures<W> {
    captures: BTreeMap<u64, Capture<W>>,
    members: BTreeMap<u64, Member>,
    events: BTreeMap<u64, Recorded>,
    next: u64,
}

impl<W> Default for Captures<W> {
    fn default() -> Self {
        Self { captures: BTreeMap::new(), members: BTreeMap::new(), events: BTreeMap::new(), next: 1 }
    }
}

impl<W: Work> Captures<W> {
    /// Whether nothing captures and no event was captured: then no other function has anything to say.
    pub fn is_idle(&self) -> bool {
        self.members.is_empty() && self.events.is_empty()
    }

    /// Begins a capture into `graph`, whose first nodes wait for `dependencies`.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `CUDA_ERROR_ILLEGAL_STATE` for a stream that
    /// captures already, `CUDA_ERROR_INVALID_VALUE` for a dependency that is not of the graph.
    pub fn begin(
        &mut self,
        stream: Stream,
        mode: Mode,
        thread: ThreadId,
        graph: SharedGraph<W>,
        dependencies: &[Dependency],
    ) -> Result<()> {
        if stream.kind == StreamKind::Legacy {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.members.contains_key(&stream.id) {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        lock(&graph).check_sources(dependencies)?;
        let number = self.next;
        self.next += 1;
        self.captures.insert(number, Capture { graph, origin: stream.id, mode, thread, valid: true, left: Vec::new() });
        let dependencies = dependencies.to_vec();
        self.members.insert(stream.id, Member { capture: number, stream, dependencies });
        Ok(())
    }

    /// Ends a capture and gives its graph. All its streams work again, also after an error but for the first three.
    ///
    /// # Errors
    /// - `CUDA_ERROR_ILLEGAL_STATE`: the stream does not capture.
    /// - `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`: the capture was begun in another stream; it is invalid from now on.
    /// - `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: by another thread, and its mode is not relaxed.
    /// - `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier call has invalidated it.
    /// - `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`: a stream, destroyed or not, has work that the first one did not wait for.
    pub fn end(&mut self, stream: u64, thread: ThreadId) -> Result<SharedGraph<W>> {
        let number = self.members.get(&stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?.capture;
        let capture = self.captures.get(&number).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let joined = self.is_joined(number);
        self.members.retain(|_, member| member.capture != number);
        let capture = self.captures.remove(&number).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        match (capture.valid, joined) {
            (false, _) => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (_, false) => Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
            _ => Ok(capture.graph),
        }
    }

    /// Whether the first stream has waited for all work of the others, or the program has made it wait by
    /// `cuStreamUpdateCaptureDependencies`. An edge that does not wait until a node is complete joins nothing, and no
    /// stream may end with one.
    fn is_joined(&self, number: u64) -> bool {
        let Some(capture) = self.captures.get(&number) else { return false };
        let Some(origin) = self.members.get(&capture.origin) else { return false };
        let graph = lock(&capture.graph);
        let full = |each: &&Dependency| each.edge.is_full();
        let mut open: Vec<NodeId> = origin.dependencies.iter().filter(full).map(|each| each.on).collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = open.pop() {
            if reached.insert(id) {
                let dependencies = graph.node(id).map(Node::dependencies).unwrap_or_default();
                open.extend(dependencies.iter().filter(full).map(|each| each.on));
            }
        }
        let members = self.members.values().filter(|member| member.capture == number);
        let mut last = members.flat_map(|member| &member.dependencies).chain(&capture.left);
        last.all(|each| full(&each) && reached.contains(&each.on))
    }

    pub fn state(&self, stream: u64) -> State<W> {
        let Some(member) = self.members.get(&stream) else { return State::None };
        match self.captures.get(&member.capture) {
            Some(capture) if capture.valid => State::Active {
                number: member.capture,
                graph: Arc::clone(&capture.graph),
                dependencies: member.dependencies.clone(),
            },
            _ => State::Invalidated { number: member.capture },
        }
    }

    /// The graph that a stream captures into, if it does and no error has spoilt it.
    pub fn graph(&self, stream: u64) -> Option<SharedGraph<W>> {
        match self.state(stream) {
            State::Active { graph, .. } => Some(graph),
            _ => None,
        }
    }

    /// Adds work of a stream to its graph: `None` if the stream does not capture, and the caller does the work.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`, or `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for work of the legacy stream
    /// while a blocking stream of its context captures.
    pub fn add(
        &mut self,
        stream: Stream,
        node: NodeId,
        edges: &LaunchEdges,
        work: impl FnOnce() -> Result<W>,
    ) -> Result<Option<NodeId>> {
        self.check_legacy(stream)?;
        let Some(member) = self.members.get_mut(&stream.id) else { return Ok(None) };
        let capture = self.captures.get(&member.capture).filter(|capture| capture.valid);
        let capture = capture.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        let (work, mut graph) = (work()?, lock(&capture.graph));
        let after = match member.dependencies[..] {
            [only] if edges.programmatic && is_kernel(graph.node(only.on)?.work.kind()) && only.edge.is_full() => {
                vec![Dependency { edge: Edge::PROGRAMMATIC, ..only }]
            }
            _ => distinct(&member.dependencies, is_kernel(work.kind())),
        };
        graph.add(node, work, &after)?;
        member.dependencies = vec![node.into()];
        for &(event, edge) in &edges.events {
            let dependencies = vec![Dependency { on: node, edge }];
            self.events.insert(event, Recorded { capture: member.capture, dependencies });
        }
        Ok(Some(node))
    }

    /// Whether a stream that captures nothing may be given work.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn check_work(&mut self, stream: Stream) -> Result<()> {
        self.check_legacy(stream)?;
        match self.state(stream.id) {
            State::Invalidated { .. } => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            _ => Ok(()),
        }
    }

    /// The legacy stream would wait for every blocking stream of its context, and a captured one never gets there.
    fn check_legacy(&mut self, stream: Stream) -> Result<()> {
        if stream.kind != StreamKind::Legacy {
            return Ok(());
        }
        match self.blocking(stream.context) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)),
            None => Ok(()),
        }
    }

    /// A capture that a blocking stream of the context takes part in.
    fn blocking(&self, context: u64) -> Option<u64> {
        let mut members = self.members.values();
        let is_blocking = |m: &&Member| m.stream.context == context && m.stream.kind == StreamKind::Blocking;
        members.find(is_blocking).map(|member| member.capture)
    }

    /// Whether a stream's state may be asked for: not the legacy stream's while a blocking one captures.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`; the capture stays valid.
    pub fn check_query(&self, stream: Stream) -> Result<()> {
        let implicit = stream.kind == StreamKind::Legacy && self.blocking(stream.context).is_some();
        if implicit { Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Replaces the dependencies of a stream's next node, or adds to them.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_STATE` for a stream that does not capture, `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`,
    /// `CUDA_ERROR_INVALID_VALUE` for a node of another graph.
    pub fn update(&mut self, stream: u64, dependencies: &[Dependency], replace: bool) -> Result<()> {
        let member = self.members.get_mut(&stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = self.captures.get(&member.capture).filter(|capture| capture.valid);
        let capture = capture.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        lock(&capture.graph).check_sources(dependencies)?;
        if replace {
            member.dependencies.clear();
        }
        merge(&mut member.dependencies, dependencies);
        Ok(())
    }

    /// Records an event: `true` if the stream captures, and the event stands for its place in the graph.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn record(&mut self, event: u64, stream: Stream) -> Result<bool> {
        self.check_legacy(stream)?;
        let Some(member) = self.members.get(&stream.id) else {
            self.events.remove(&event);
            return Ok(false);
        };
        if !self.captures[&member.capture].valid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let recorded = Recorded { capture: member.capture, dependencies: member.dependencies.clone() };
        self.events.insert(event, recorded);
        Ok(true)
    }

    /// Makes a stream wait for an event: `true` if that is only an edge of a graph, `false` if the caller has to make
    /// it wait. A stream that does not capture joins the event's capture.
    ///
    /// # Errors
    /// - `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: the stream captures, and the event is not of a running capture.
    /// - `CUDA_ERROR_STREAM_CAPTURE_MERGE`: it is of another one; both are invalid from now on.
    /// - `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the legacy stream would join.
    /// - `CUDA_ERROR_CAPTURED_EVENT`: the event's capture has ended (CUDA names no code).
    /// - `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
    pub fn wait(&mut self, stream: Stream, event: u64) -> Result<bool> {
        let own = self.members.get(&stream.id).map(|member| member.capture);
        let Some(recorded) = self.events.get(&event) else {
            self.check_legacy(stream)?;
            return match own {
                Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)),
                None => Ok(false),
            };
        };
        let (number, dependencies) = (recorded.capture, recorded.dependencies.clone());
        let Some(capture) = self.captures.get(&number) else {
            return match own {
                Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)),
                None => Err(CUDA_ERROR_CAPTURED_EVENT),
            };
        };
        if !capture.valid {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        match own {
            Some(other) if other != number => {
                self.invalidate(other);
                Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_MERGE))
            }
            Some(_) => {
                let member = self.members.get_mut(&stream.id).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
                merge(&mut member.dependencies, &dependencies);
                Ok(true)
            }
            None if stream.kind == StreamKind::Legacy => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)),
            None => {
                self.members.insert(stream.id, Member { capture: number, stream, dependencies });
                Ok(true)
            }
        }
    }

    /// Whether an event may be queried or waited for by the program.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT`; a running capture of the event is invalid from now on.
    pub fn check_event(&mut self, event: u64) -> Result<()> {
        match self.events.get(&event).map(|recorded| recorded.capture) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_CAPTURED_EVENT)),
            None => Ok(()),
        }
    }

    /// Whether a stream may be waited for or queried.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if it captures; that is invalid from now on. As [`Self::add`] for the
    /// legacy stream.
    pub fn check_stream(&mut self, stream: Stream) -> Result<()> {
        self.check_legacy(stream)?;
        match self.members.get(&stream.id).map(|member| member.capture) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// Whether a context may be waited for.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if one of its streams captures; that is invalid from now on.
    pub fn check_context(&mut self, context: u64) -> Result<()> {
        let captures = self.members.values().filter(|member| member.stream.context == context);
        let captures: BTreeSet<u64> = captures.map(|member| member.capture).collect();
        self.invalidate_all(&captures)
    }

    /// Whether a thread may make a call that could disturb a capture: allocation, and what waits inside the driver.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`, and the captures that forbid it are invalid from now on.
    pub fn check_call(&mut self, thread: ThreadId, mode: Mode) -> Result<()> {
        let forbids = |capture: &Capture<W>| match mode {
            Mode::Relaxed => false,
            Mode::ThreadLocal => capture.thread == thread && capture.mode != Mode::Relaxed,
            Mode::Global => capture.mode == Mode::Global || capture.thread == thread && capture.mode != Mode::Relaxed,
        };
        let captures: BTreeSet<u64> =
            self.captures.iter().filter(|(_, capture)| forbids(capture)).map(|(&number, _)| number).collect();
        self.invalidate_all(&captures)
    }

    fn invalidate_all(&mut self, captures: &BTreeSet<u64>) -> Result<()> {
        if captures.is_empty() {
            return Ok(());
        }
        captures.iter().for_each(|&number| self.invalidate(number));
        Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Forgets an event that was destroyed.
    pub fn forget_event(&mut self, event: u64) {
        self.events.remove(&event);
    }

    /// Forgets a destroyed stream. A capture that it began is over; another one continues, and still has to wait for
    /// the stream's work (CUDA's documentation does not mention it; Warp makes the first stream wait by naming the
    /// nodes).
    pub fn forget_stream(&mut self, stream: u64) {
        let Some(member) = self.members.remove(&stream) else { return };
        let number = member.capture;
        if self.captures.get(&number).is_some_and(|capture| capture.origin == stream) {
            self.captures.remove(&number);
            self.members.retain(|_, other| other.capture != number);
        } else if let Some(capture) = self.captures.get_mut(&number) {
            merge(&mut capture.left, &member.dependencies);
        }
    }

    fn invalidate(&mut self, number: u64) {
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.valid = false;
        }
    }

    /// Invalidates a capture because of an error. Returns the error's code.
    fn spoil(&mut self, number: u64, code: u32) -> u32 {
        self.invalidate(number);
        code
    }
}
