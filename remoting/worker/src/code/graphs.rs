//! Executable graphs. The worker builds each graph in the driver from nodes that correspond to commands, and launches
//! the whole graph with one call.

use crate::code::launch_shape::{attribute, config};
use crate::driver::{Driver, Handle, Result};
use crate::order::completions::Then;
use crate::session::commands::{Outcome, Session};
use crate::session::objects::{Graph, Kernel};
use driverapi::errors::*;
use driverapi::types::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphEdgeData, CUlaunchAttribute};
use protocol::{
    CopyOnDevice, DecodeError, GraphBuild, GraphCondition, GraphEdge, GraphLaunch, GraphNode, Launch, LaunchShape,
    Message, Reader, function,
};
use std::collections::HashMap;
use std::sync::Arc;

/// The only flag that the worker passes to the driver. The client handles the other flags.
const USE_NODE_PRIORITY: u64 = 8;

/// A graph node, in the form that is added to the driver's graph.
enum Node {
    Empty,
    Kernel(Call),
    Copy(CUDA_MEMCPY3D),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Choose(Condition, Vec<Nodes>),
}

/// A list of nodes, each with the edges that lead to it.
type Nodes = Vec<(Vec<GraphEdge>, Node)>;

struct Condition {
    /// The client's handle of the condition.
    handle: u64,
    kind: u32,
    default: Option<u32>,
}

/// Limit on the nesting depth of conditional nodes.
const DEEPEST: u32 = 16;

struct Call {
    function: Handle,
    shape: LaunchShape,
    attributes: Vec<CUlaunchAttribute>,
    parameters: Vec<u8>,
}

// SAFETY: the addresses in a copy are numbers of device memory, which no thread owns.
unsafe impl Send for Node {}

/// Returns the number of nodes, including those of the bodies.
fn count(nodes: &Nodes) -> u64 {
    let bodies = nodes.iter().map(|(_, node)| match node {
        Node::Choose(_, bodies) => bodies.iter().map(count).sum(),
        _ => 0,
    });
    nodes.len() as u64 + bodies.sum::<u64>()
}

fn is_ordinary(edge: &GraphEdge) -> bool {
    *edge == GraphEdge { place: edge.place, ..GraphEdge::default() }
}

/// Builds and instantiates the graph. If the driver refuses, builds the graph again with ordinary edges only. Ordinary
/// edges order at least as strictly, so the result is always correct.
fn build(driver: &Driver, context: Handle, flags: u64, nodes: &[(Vec<GraphEdge>, Node)]) -> Result<Handle> {
    driver.set_current(context)?;
    match build_with(driver, context, flags, nodes, is_ordinary) {
        Err(_) if !nodes.iter().all(|(after, _)| after.iter().all(is_ordinary)) => {
            build_with(driver, context, flags, nodes, |_| true)
        }
        done => done,
    }
}

/// Builds and instantiates the graph. The edges for which `ordinary` returns true are replaced by ordinary edges.
fn build_with(
    driver: &Driver,
    context: Handle,
    flags: u64,
    nodes: &[(Vec<GraphEdge>, Node)],
    ordinary: impl Fn(&GraphEdge) -> bool,
) -> Result<Handle> {
    let graph = driver.graph_create()?;
    let built = add_all(driver, context, graph, nodes, &ordinary, &mut HashMap::new())
        .and_then(|()| driver.graph_instantiate(graph, flags & USE_NODE_PRIORITY));
    // The executable graph does not need the graph that it was made from.
    let destroyed = driver.graph_destroy(graph);
    built.and_then(|executable| destroyed.map(|()| executable))
}

fn add_all(
    driver: &Driver,
    context: Handle,
    graph: Handle,
    nodes: &[(Vec<GraphEdge>, Node)],
    ordinary: &impl Fn(&GraphEdge) -> bool,
    conditions: &mut HashMap<u64, u64>,
) -> Result<()> {
    for (_, node) in nodes {
        if let Node::Choose(Condition { handle, default, .. }, _) = node {
            conditions.insert(*handle, driver.graph_condition(graph, context, *default)?);
        }
    }
    let mut handles: Vec<Handle> = Vec::with_capacity(nodes.len());
    let at = |handles: &[Handle], edge: &GraphEdge| {
        handles.get(edge.place as usize).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    };
    for (edges, node) in nodes {
        let after = edges.iter().filter(|edge| ordinary(edge)).map(|edge| at(&handles, edge));
        let after: Vec<Handle> = after.collect::<Result<_>>()?;
        let added = match node {
            Node::Empty => driver.graph_add_empty(graph, &after)?,
            Node::Copy(copy) => driver.graph_add_copy(graph, &after, copy, context)?,
            Node::Fill(fill) => driver.graph_add_fill(graph, &after, fill, context)?,
            Node::Choose(Condition { handle, kind, .. }, bodies) => {
                let handle = conditions.get(handle).copied().ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let (added, made) =
                    driver.graph_add_choice(graph, &after, (handle, *kind), bodies.len() as u32, context)?;
                for (body, graph) in bodies.iter().zip(made) {
                    add_all(driver, context, graph, body, ordinary, conditions)?;
                }
                added
            }
            Node::Kernel(call) => {
                let config = config(&call.shape, &mut [], Handle::NULL);
                let parameters = with_conditions(&call.parameters, conditions);
                let added = driver.graph_add_kernel(graph, &after, call.function, &config, &parameters)?;
                call.attributes.iter().try_for_each(|each| driver.graph_set_attribute(added, each))?;
                added
            }
        };
        for edge in edges.iter().filter(|edge| !ordinary(edge)) {
            let GraphEdge { from_port, to_port, kind: type_, .. } = *edge;
            let data = CUgraphEdgeData { from_port, to_port, type_, reserved: [0; 5] };
            driver.graph_connect(graph, at(&handles, edge)?, added, &data)?;
        }
        handles.push(added);
    }
    Ok(())
}

/// Returns a kernel's parameters, with the client's condition handles replaced by the driver's.
fn with_conditions(parameters: &[u8], conditions: &HashMap<u64, u64>) -> Vec<u8> {
    let mut parameters = parameters.to_vec();
    if !conditions.is_empty() {
        for word in parameters.as_chunks_mut().0 {
            if let Some(handle) = conditions.get(&u64::from_le_bytes(*word)) {
                *word = handle.to_le_bytes();
            }
        }
    }
    parameters
}

/// Decodes the arguments of `cuMemsetD2D*Async`.
#[allow(non_snake_case)]
fn fill(number: u32, body: &[u8]) -> std::result::Result<CUDA_MEMSET_NODE_PARAMS, DecodeError> {
    let mut reader = Reader::new(body);
    let (dst, pitch) = (reader.get()?, reader.get::<u64>()? as usize);
    let (value, elementSize) = match number {
        function::CU_MEMSET_D2D8_ASYNC => (reader.get::<u8>()?.into(), 1),
        function::CU_MEMSET_D2D16_ASYNC => (reader.get::<u16>()?.into(), 2),
        _ => (reader.get::<u32>()?, 4),
    };
    let (width, height) = (reader.get::<u64>()? as usize, reader.get::<u64>()? as usize);
    reader.finish()?;
    Ok(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height })
}

impl Session {
    pub fn graph_build(&mut self, seq: u64, c: &GraphBuild) -> Result<()> {
        let context = self.contexts.get(c.context)?.handle;
        if self.graphs.contains(c.graph) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.graphs.is_full() {
            return Err(self.out_of("executable graphs", self.budgets.graphs));
        }
        self.enter(c.context)?;
        let nodes = self.nodes(c.context, &c.nodes, DEEPEST)?;
        if count(&nodes) > self.budgets.graph_nodes {
            return Err(self.out_of("nodes of a graph", self.budgets.graph_nodes));
        }
        let (id, of, flags, made) = (c.graph, c.context, c.flags, Arc::new(c.clone()));
        self.helpers.start(
            move |driver| build(driver, context, flags, &nodes),
            move |session: &mut Session, built| match built {
                Ok(executable) => {
                    session.graphs.insert(id, Ok(Graph { context: of, made, executable }));
                    session.reply(seq, 0);
                }
                Err(code) => session.reply(seq, code),
            },
        );
        Ok(())
    }

    fn nodes(&self, context: u64, nodes: &[GraphNode], deepest: u32) -> Result<Nodes> {
        nodes.iter().map(|node| Ok((node.after.clone(), self.node(context, node, deepest)?))).collect()
    }

    /// Converts a node for the driver, after the same checks as for the corresponding command.
    fn node(&self, context: u64, node: &GraphNode, deepest: u32) -> Result<Node> {
        let malformed = |_: DecodeError| CUDA_ERROR_INVALID_VALUE;
        match node.code {
            0 => Ok(Node::Empty),
            Launch::CODE => {
                let (launch, parameters) = Launch::decode(&node.body).map_err(malformed)?;
                let module = self.modules.get(launch.module)?;
                if module.context != context {
                    return Err(CUDA_ERROR_INVALID_HANDLE);
                }
                let Kernel { function, parameter_bytes, settings, .. } = module.kernel(launch.kernel)?;
                let parameters =
                    parameters.get(..parameter_bytes.unwrap_or(0)).ok_or(CUDA_ERROR_INVALID_VALUE)?.to_vec();
                settings.apply(&self.driver, *function, settings.wanted())?;
                let attributes = launch.shape.attributes.iter().map(attribute).collect::<Result<_>>()?;
                Ok(Node::Kernel(Call { function: *function, shape: launch.shape, attributes, parameters }))
            }
            GraphCondition::CODE => {
                let (choice, _) = GraphCondition::decode(&node.body).map_err(malformed)?;
                let deepest = deepest.checked_sub(1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let GraphCondition { handle, kind, assigns, default, bodies } = choice;
                let condition = Condition { handle, kind, default: assigns.then_some(default) };
                let bodies = bodies.iter().map(|body| self.nodes(context, body, deepest)).collect::<Result<_>>()?;
                Ok(Node::Choose(condition, bodies))
            }
            CopyOnDevice::CODE => {
                let (copy, _) = CopyOnDevice::decode(&node.body).map_err(malformed)?;
                self.box_on_device(&copy).map(Node::Copy)
            }
            function::CU_MEMSET_D2D8_ASYNC | function::CU_MEMSET_D2D16_ASYNC | function::CU_MEMSET_D2D32_ASYNC => {
                let fill = fill(node.code, &node.body).map_err(malformed)?;
                let rows = fill.pitch.checked_mul(fill.height.saturating_sub(1));
                let row = fill.width.checked_mul(fill.elementSize as usize);
                let span =
                    rows.zip(row).and_then(|(rows, row)| rows.checked_add(row)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                self.memory.check(fill.dst, span as u64)?;
                Ok(Node::Fill(fill))
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub fn graph_launch(&mut self, stream_id: u64, c: &GraphLaunch) -> Result<Outcome> {
        if !self.may_launch(stream_id)? {
            return Ok(Outcome::Blocked);
        }
        let Some(stream) = self.begin(stream_id)? else {
            self.launch_waits(stream_id)?;
            return Ok(Outcome::Blocked);
        };
        let executable = self.graphs.get(c.graph)?.executable;
        self.driver.graph_launch(executable, stream)?;
        self.stats.launches += 1;
        self.issued(stream_id);
        self.launched(stream_id, executable)?;
        Ok(Outcome::Done)
    }

    /// Destroys an executable graph when all work that the context has so far is complete, because waiting launches
    /// still need the graph.
    pub fn graph_destroy(&mut self, seq: u64, id: u64) -> Result<()> {
        let Graph { context, executable, .. } = self.graphs.remove(id)?;
        self.context_join(context, seq, Then::DestroyGraph { context, executable })
    }

    /// Destroys the driver's executable graph. The caller makes sure that nothing uses it any more.
    pub fn destroy_executable(&mut self, context: u64, executable: Handle) {
        // If the context is gone, the executable is gone too.
        let Ok(handle) = self.contexts.get(context).map(|c| c.handle) else { return };
        self.helpers.start(
            move |driver| driver.set_current(handle).and_then(|()| driver.graph_exec_destroy(executable)),
            move |session: &mut Session, destroyed| session.late_in(context, destroyed),
        );
    }
}
