//! Stream capture: the state of streams that record their work into a graph, and the calls that a capture forbids.
//!
//! The rules are those of the CUDA programming guide, "Creating a Graph Using Stream Capture", and of
//! `cuStreamBeginCapture_v2`, `cuStreamEndCapture`, `cuThreadExchangeStreamCaptureMode` and `cuStreamIsCapturing`. If
//! CUDA documents no error code, a comment says so.

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

/// The set of calls that a thread may make while a capture runs. [`Mode::Global`] forbids most calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    #[default]
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    /// Converts the number that the program passed into a mode.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the number is not a mode.
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

/// A stream, with the properties that captures need. The caller chooses the ids and never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    pub id: u64,
    pub context: u64,
    pub kind: StreamKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// The legacy default stream, which cannot be captured.
    Legacy,
    /// A stream that waits for the legacy stream. The legacy stream also waits for this stream.
    Blocking,
    NonBlocking,
}

/// The capture state of a stream.
pub enum State<W> {
    None,
    Active {
        number: u64,
        graph: SharedGraph<W>,
        dependencies: Vec<Dependency>,
    },
    /// An earlier error invalidated the capture. The only allowed call is the one that ends the capture.
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
    /// The last nodes of streams that took part in the capture and were then destroyed.
    left: Vec<Dependency>,
}

struct Member {
    capture: u64,
    stream: Stream,
    /// The dependencies of the next node that this stream adds.
    dependencies: Vec<Dependency>,
}

/// The position in a graph that an event marks: the dependencies of its stream when the event was last recorded.
struct Recorded {
    capture: u64,
    dependencies: Vec<Dependency>,
}

/// The edges that the attributes of a captured launch add. Other captured work has no such attributes.
#[derive(Default)]
pub struct LaunchEdges {
    /// The attribute `PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin when the previous kernel of the stream
    /// has triggered it.
    pub programmatic: bool,
    /// The events that the launch records, each with the edge that a node gets if it waits for the event.
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
    /// Whether no capture runs and no event was captured. Then the other functions have nothing to check.
    pub fn is_idle(&self) -> bool {
        self.members.is_empty() && self.events.is_empty()
    }

    /// Begins a capture into `graph`. The first nodes of the capture wait for `dependencies`.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `CUDA_ERROR_ILLEGAL_STATE` if the stream already
    /// captures, `CUDA_ERROR_INVALID_VALUE` if a dependency is not a node of the graph.
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

    /// Ends a capture and returns its graph. All streams of the capture leave it, also after an error, except after the
    /// first three errors.
    ///
    /// # Errors
    /// - `CUDA_ERROR_ILLEGAL_STATE`: the stream does not capture.
    /// - `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`: the capture was begun in another stream. The capture becomes invalid.
    /// - `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: another thread began the capture, and its mode is not relaxed.
    /// - `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier call has invalidated the capture.
    /// - `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`: the first stream has not waited for all work of another stream, which
    ///   may have been destroyed since.
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

    /// Whether the capture's first stream has waited for all work of the other streams, or
    /// `cuStreamUpdateCaptureDependencies` has made it wait. An edge that does not wait for the end of a node does not
    /// count as a wait, and no stream may end with such an edge.
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

    /// Returns the graph that a stream captures into, or `None` if the stream does not capture or its capture is
    /// invalid.
    pub fn graph(&self, stream: u64) -> Option<SharedGraph<W>> {
        match self.state(stream) {
            State::Active { graph, .. } => Some(graph),
            _ => None,
        }
    }

    /// Adds a stream's work to the graph that the stream captures into. Returns `None` if the stream does not capture;
    /// then the caller executes the work.
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

    /// Checks that work may be given to a stream that does not capture.
    ///
    /// # Errors
    /// The same errors as [`Self::add`].
    pub fn check_work(&mut self, stream: Stream) -> Result<()> {
        self.check_legacy(stream)?;
        match self.state(stream.id) {
            State::Invalidated { .. } => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            _ => Ok(()),
        }
    }

    /// Checks that work may be given to the legacy stream. The legacy stream would wait for every blocking stream of
    /// its context, but a captured stream never executes its work.
    fn check_legacy(&mut self, stream: Stream) -> Result<()> {
        if stream.kind != StreamKind::Legacy {
            return Ok(());
        }
        match self.blocking(stream.context) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)),
            None => Ok(()),
        }
    }

    /// Returns a capture to which a blocking stream of the context belongs.
    fn blocking(&self, context: u64) -> Option<u64> {
        let mut members = self.members.values();
        let is_blocking = |m: &&Member| m.stream.context == context && m.stream.kind == StreamKind::Blocking;
        members.find(is_blocking).map(|member| member.capture)
    }

    /// Checks that a stream's state may be queried. The legacy stream must not be queried while a blocking stream of
    /// its context captures.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`. The capture stays valid.
    pub fn check_query(&self, stream: Stream) -> Result<()> {
        let implicit = stream.kind == StreamKind::Legacy && self.blocking(stream.context).is_some();
        if implicit { Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// Adds dependencies for the next node of a stream. If `replace` is set, they replace the present dependencies.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_STATE` if the stream does not capture, `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` if the
    /// capture is invalid, `CUDA_ERROR_INVALID_VALUE` for a node of another graph.
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

    /// Records an event. Returns `true` if the stream captures; then the event marks a position in the graph.
    ///
    /// # Errors
    /// The same errors as [`Self::add`].
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

    /// Makes a stream wait for an event. Returns `true` if the wait became an edge of a graph, and `false` if the
    /// caller has to make the stream wait. A stream that does not capture joins the capture of the event.
    ///
    /// # Errors
    /// - `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`: the stream captures, and the event does not belong to a running
    ///   capture.
    /// - `CUDA_ERROR_STREAM_CAPTURE_MERGE`: the event belongs to another capture. Both captures become invalid.
    /// - `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: the legacy stream would join the capture.
    /// - `CUDA_ERROR_CAPTURED_EVENT`: the capture of the event has ended (CUDA documents no code for this).
    /// - `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`: an earlier call has invalidated the capture.
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

    /// Checks that the program may query an event or wait for it.
    ///
    /// # Errors
    /// `CUDA_ERROR_CAPTURED_EVENT` if the event was recorded in a capture. If that capture still runs, it becomes
    /// invalid.
    pub fn check_event(&mut self, event: u64) -> Result<()> {
        match self.events.get(&event).map(|recorded| recorded.capture) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_CAPTURED_EVENT)),
            None => Ok(()),
        }
    }

    /// Checks that the program may query a stream or wait for it.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if the stream captures. Its capture becomes invalid. For the legacy
    /// stream, the same errors as [`Self::add`].
    pub fn check_stream(&mut self, stream: Stream) -> Result<()> {
        self.check_legacy(stream)?;
        match self.members.get(&stream.id).map(|member| member.capture) {
            Some(number) => Err(self.spoil(number, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// Checks that the program may wait for a context.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` if a stream of the context captures. Its capture becomes invalid.
    pub fn check_context(&mut self, context: u64) -> Result<()> {
        let captures = self.members.values().filter(|member| member.stream.context == context);
        let captures: BTreeSet<u64> = captures.map(|member| member.capture).collect();
        self.invalidate_all(&captures)
    }

    /// Checks that a thread may make a call that can disturb a capture: an allocation, or a call that waits inside the
    /// driver.
    ///
    /// # Errors
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`. The captures that forbid the call become invalid.
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

    /// Removes an event that was destroyed.
    pub fn forget_event(&mut self, event: u64) {
        self.events.remove(&event);
    }

    /// Removes a destroyed stream. A capture that this stream began ends. Any other capture continues and must still
    /// wait for the work of the stream. CUDA's documentation does not mention this case; Warp makes the first stream
    /// wait by naming the nodes.
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

    /// Invalidates a capture because of an error. Returns the code of the error.
    fn spoil(&mut self, number: u64, code: u32) -> u32 {
        self.invalidate(number);
        code
    }
}
