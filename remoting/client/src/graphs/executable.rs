//! Executable graphs. Nodes that need only the device are built into a graph in the worker, which one command launches.
//! Host functions, copies from and to the host, and events are sent as the corresponding calls.

use crate::Code;
use crate::boundary::refused;
use crate::devices::context::{self, Context, Live};
use crate::devices::handles::{Kind, Table};
use crate::graphs::conditions;
use crate::graphs::graph::{GRAPHS, Work, capture};
use crate::launch::Prepared;
use crate::memory::{host, pinned};
use crate::objects::event::{self, Event};
use crate::objects::stream::Target;
use crate::session::{lock, mint};
use driverapi::constants::*;
use driverapi::errors::*;
use graphs::{Backed, Graph, SharedGraph, Step, steps};
use protocol::{GraphBuild, GraphDestroy, GraphLaunch, GraphNode, MAX_PAYLOAD, Message, Wire};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

static EXECUTABLES: Table<Executable> = Table::new(Kind::Executable);

/// The minimum number of nodes that are built in the worker. Fewer nodes are sent as commands.
const WORTH_BUILDING: usize = 2;

/// A graph in the state in which it was instantiated, and its updates.
pub struct Executable {
    pub handle: usize,
    pub flags: u64,
    pub graph: SharedGraph<Work>,
    /// Whether the graph has conditional nodes. Updates cannot change this.
    has_conditions: bool,
    /// The number of updates since the instantiation.
    changes: AtomicU64,
    state: Mutex<State>,
}

struct State {
    pieces: Vec<Piece>,
    /// The value of `changes` for which the pieces were made.
    made_for: u64,
    /// Whether the graph of the pieces allocates or frees memory.
    uses_memory: bool,
    /// The memory that the executable keeps backed.
    backed: Vec<Backed>,
    /// The value of `changes` at the last launch.
    launched_with: u64,
    last: Last,
}

/// The last launch of an executable. The next launch must not overlap it.
enum Last {
    None,
    /// The next launch waits for this event.
    Event(Arc<Event>),
    /// The whole graph is one graph of the driver, which orders launches of the same graph itself.
    Driver(Arc<Live>, u64),
}

/// A part of a graph. The parts are launched in order in one stream.
enum Piece {
    Built(Built),
    Sent(Work),
}

/// An executable graph in the worker.
struct Built {
    id: u64,
    live: Arc<Live>,
    kernels: Vec<Arc<Prepared>>,
    /// Whether kernels get addresses of page-locked memory, with the value of `host::changes` at the time of the check.
    names_host_memory: (u64, bool),
}

impl Drop for Built {
    fn drop(&mut self) {
        // The worker destroys the graph with its context. If the session has failed, nothing needs to be destroyed.
        if Context::is_live(&self.live) {
            let _ = self.live.session.post(0, &GraphDestroy { graph: self.id });
        }
    }
}

/// Instantiates a graph.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a cycle, unknown flags or a graph that belongs to a node, `CUDA_ERROR_NOT_SUPPORTED`
/// for launches from the device, `CUDA_ERROR_OUT_OF_MEMORY` if there is no room for the memory of its nodes.
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
    graph.check_not_moved()?;
    graphs::check_bodies(graph)?;
    let backed = GRAPHS.memories.back(graph)?;
    let pieces = divide(graph, &context::current()?, flags)?;
    let (uses_memory, has_conditions) = (graph.uses_memory(), graph.has_conditions());
    let graph = GRAPHS.copy(graph);
    let state = Mutex::new(State { pieces, made_for: 0, uses_memory, backed, launched_with: 0, last: Last::None });
    let changes = AtomicU64::new(0);
    EXECUTABLES
        .insert(|handle| Arc::new(Executable { handle, flags, graph, has_conditions, changes, state }))
        .ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Returns the executable with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is none.
pub fn get(handle: usize) -> Result<Arc<Executable>, Code> {
    EXECUTABLES.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Destroys an executable. May wait for its last launch.
///
/// # Errors
/// Those of [`get`], or the code of failed work.
pub fn destroy(handle: usize) -> Result<(), Code> {
    let gone = EXECUTABLES.remove(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    GRAPHS.forget_nodes(&gone.graph);
    let mut state = lock(&gone.state);
    state.pieces.clear();
    state.backed.clear();
    if !graphs::lock(&gone.graph).holds_objects() {
        return Ok(());
    }
    // The program's destructors may run only when no running work uses their objects.
    match std::mem::replace(&mut state.last, Last::None) {
        Last::None => Ok(()),
        Last::Event(event) => event.synchronise(),
        Last::Driver(live, _) => live.synchronise(),
    }
}

impl Executable {
    /// Changes the graph with `act`. The pieces are built again when two launches follow each other without a change.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn change<T>(&self, act: impl FnOnce(&mut Graph<Work>) -> Result<T, Code>) -> Result<T, Code> {
        self.changes.fetch_add(1, SeqCst);
        act(&mut graphs::lock(&self.graph))
    }

    /// Launches the whole graph on a stream.
    ///
    /// # Errors
    /// The code of a node that could not be sent.
    pub fn launch(&self, target: &Target) -> Result<(), Code> {
        if self.has_conditions && GRAPHS.is_capturing(target.stream_id) {
            return refused("cuGraphLaunch of a graph with conditional nodes in a capture");
        }
        if capture(target, || Ok(Work::Child(GRAPHS.embed(&graphs::lock(&self.graph)))))? {
            return Ok(());
        }
        let mut state = lock(&self.state);
        let graph = graphs::lock(&self.graph);
        let changes = self.changes.load(SeqCst);
        if state.made_for != changes || state.uses_memory {
            let frees_first = self.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
            GRAPHS.memories.launch(&graph, frees_first)?;
        }
        let settled = state.launched_with == changes;
        state.launched_with = changes;
        if state.made_for != changes && (settled || self.has_conditions) {
            state.pieces = divide(&graph, &target.live, self.flags)?;
            state.made_for = changes;
            state.uses_memory = graph.uses_memory();
        }
        if state.made_for != changes {
            let works = steps(&graph)?.into_iter().filter_map(|step| step.work);
            let mut pieces: Vec<_> = works.map(Piece::Sent).collect();
            drop(graph);
            return state.last.follow(target, &mut pieces);
        }
        drop(graph);
        let State { pieces, last, .. } = &mut *state;
        last.follow(target, pieces)
    }
}

impl Last {
    /// Launches the pieces after the previous launch, and records this launch as the last one.
    fn follow(&mut self, target: &Target, pieces: &mut [Piece]) -> Result<(), Code> {
        let whole = match &*pieces {
            [Piece::Built(built)] => Some(built.id),
            _ => None,
        };
        match &*self {
            Last::None => {}
            Last::Event(before) => before.hold_up(target, 0)?,
            Last::Driver(_, id) if Some(*id) == whole => {}
            // This wait is needed once after a change of the graph.
            Last::Driver(live, _) => live.synchronise()?,
        }
        pieces.iter_mut().try_for_each(|piece| piece.launch(target))?;
        *self = match (whole, std::mem::replace(self, Last::None)) {
            (Some(id), _) => Last::Driver(Arc::clone(&target.live), id),
            (None, before) => {
                let event = match before {
                    Last::Event(event) if event.live.id == target.live.id => event,
                    _ => event::create_in(&target.live)?,
                };
                event.record(target, 0)?;
                Last::Event(event)
            }
        };
        Ok(())
    }
}

impl Piece {
    fn launch(&mut self, target: &Target) -> Result<(), Code> {
        match self {
            Piece::Built(built) => built.launch(target),
            Piece::Sent(Work::Launch(prepared)) if prepared.context() != target.live.id => {
                refused("cuGraphLaunch of kernels of several contexts")
            }
            Piece::Sent(work) => work.send(target),
        }
    }
}

impl Built {
    fn launch(&mut self, target: &Target) -> Result<(), Code> {
        if self.live.id != target.live.id {
            return refused("cuGraphLaunch of kernels of several contexts");
        }
        if self.names_host_memory.0 != host::changes() {
            self.names_host_memory = (host::changes(), self.kernels.iter().any(|kernel| kernel.names_host_memory()));
        }
        if self.names_host_memory.1 {
            self.kernels.iter().try_for_each(|kernel| kernel.mirror_host_memory(target))?;
        } else {
            pinned::before_launch(target, Vec::new)?;
        }
        let launch = GraphLaunch { graph: self.id };
        let body = |w: &mut protocol::Writer| {
            w.put(&launch);
        };
        target.live.session.post_work(GraphLaunch::CODE, target.stream_id, body).map(drop)
    }
}

/// Divides a graph into pieces. The worker builds each run of consecutive nodes that need only the device.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a cycle, or the session's sticky error.
fn divide(graph: &Graph<Work>, live: &Arc<Live>, flags: u64) -> Result<Vec<Piece>, Code> {
    let steps = steps(graph)?;
    let nodes: Vec<_> = steps.iter().map(|step| conditions::step(step, live)).collect();
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < steps.len() {
        let length = nodes[start..].iter().take_while(|node| node.is_some()).count();
        let run = start..start + length.max(1);
        let work = |at: usize| nodes[at].as_ref().is_some_and(|(code, _)| *code != 0);
        let chooses = steps[run.clone()].iter().any(|step| matches!(step.work, Some(Work::Conditional(_))));
        let built = match run.clone().filter(|&at| work(at)).count() {
            count if count >= WORTH_BUILDING || chooses && length > 0 => {
                let works = nodes[run.clone()].iter().map(|node| node.clone().unwrap_or_default()).collect();
                let of_run = &steps[run.clone()];
                build(live, flags, conditions::described(of_run, start, works), of_run)?
            }
            _ => None,
        };
        match built {
            Some(built) => pieces.push(Piece::Built(built)),
            None => pieces.extend(steps[run.clone()].iter().filter_map(|step| step.work.clone()).map(Piece::Sent)),
        }
        start = run.end;
    }
    Ok(pieces)
}

/// Builds the nodes in the worker. Returns `None` if the worker cannot. The commands are then sent one by one, and
/// report the cause if they fail, too.
fn build(live: &Arc<Live>, flags: u64, nodes: Vec<GraphNode>, steps: &[Step<Work>]) -> Result<Option<Built>, Code> {
    let message = GraphBuild { graph: mint(), context: live.id, flags, nodes };
    if message.size() > MAX_PAYLOAD {
        return Ok(None);
    }
    if live.session.call(0, &message)?.code != 0 {
        return Ok(None);
    }
    let mut kernels = Vec::new();
    for step in steps {
        match &step.work {
            Some(Work::Launch(prepared)) => kernels.push(Arc::clone(prepared)),
            Some(Work::Conditional(conditional)) => conditions::kernels(conditional, &mut kernels),
            _ => {}
        }
    }
    let names_host_memory = (host::changes(), kernels.iter().any(|kernel| kernel.names_host_memory()));
    Ok(Some(Built { id: message.graph, live: Arc::clone(live), kernels, names_host_memory }))
}
