//! Conditional nodes of graphs. The handle of a condition is a number of this library, and kernels get it as a
//! parameter. When the worker builds a graph, it replaces this number by the driver's handle. So a graph can be built
//! several times.

use crate::Code;
use crate::devices::context::Live;
use crate::graphs::graph::{Condition, Conditional, GRAPHS, Work};
use crate::launch::Prepared;
use crate::session::lock;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use graphs::{SharedGraph, Step, steps};
use protocol::{GraphCondition, GraphEdge, GraphNode, Message, Writer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The next handle. The numbers are unusual, so that other parameters of kernels do not equal them by chance.
static NEXT: AtomicU64 = AtomicU64::new(0xc0_4d17_1094_0000);

static CONDITIONS: Mutex<Option<HashMap<u64, Arc<Condition>>>> = Mutex::new(None);

/// Creates a condition for a graph, and returns its handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if `graph` is not the handle of a graph.
pub fn create(graph: usize, live: &Live, default: Option<u32>) -> Result<u64, Code> {
    GRAPHS.graph(graph)?;
    let handle = NEXT.fetch_add(1, Relaxed);
    let condition = Condition { handle, graph, context: live.id, default };
    lock(&CONDITIONS).get_or_insert_default().insert(handle, Arc::new(condition));
    Ok(handle)
}

/// Returns a conditional node. The graphs that it selects from are empty.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the condition does not belong to the graph, or if this kind cannot have `size` graphs.
pub fn node(graph: usize, handle: u64, kind: u32, size: u32) -> Result<Conditional, Code> {
    let known = lock(&CONDITIONS).get_or_insert_default().get(&handle).cloned();
    let condition = known.filter(|condition| condition.graph == graph).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Conditional::new(&GRAPHS, condition, kind, size)
}

/// Returns the code and fields of a step for the worker, or `None` if the step needs the client.
pub fn step(step: &Step<Work>, live: &Live) -> Option<(u32, Vec<u8>)> {
    match &step.work {
        // The memory was allocated or freed before the launch.
        None | Some(Work::Empty | Work::Allocate(_) | Work::Free(_)) => Some((0, Vec::new())),
        Some(Work::Conditional(conditional)) => command(conditional, live),
        Some(work) => work.command(live),
    }
}

/// Returns the nodes that the worker builds from the steps. `start` is the position of the first step in the graph.
pub fn described(steps: &[Step<Work>], start: usize, works: Vec<(u32, Vec<u8>)>) -> Vec<GraphNode> {
    let edge = |&(at, edge): &(usize, graphs::Edge)| {
        let graphs::Edge { from_port, to_port, kind } = edge;
        Some(GraphEdge { place: at.checked_sub(start)? as u32, from_port, to_port, kind })
    };
    let after = |step: &Step<Work>| step.after.iter().filter_map(edge).collect();
    steps.iter().zip(works).map(|(step, (code, body))| GraphNode { after: after(step), code, body }).collect()
}

/// Returns the command for a conditional node, or `None` if a part of it needs the client.
fn command(conditional: &Conditional, live: &Live) -> Option<(u32, Vec<u8>)> {
    let Condition { handle, graph: _, context, default } = *conditional.condition;
    if context != live.id {
        return None;
    }
    let body = |body: &SharedGraph<Work>| {
        let steps = steps(&graphs::lock(body)).ok()?;
        let works = steps.iter().map(|each| step(each, live)).collect::<Option<_>>()?;
        Some(described(&steps, 0, works))
    };
    let bodies = conditional.bodies.iter().map(body).collect::<Option<_>>()?;
    let (assigns, default) = (default.is_some(), default.unwrap_or(0));
    let mut w = Writer::new();
    w.put(&GraphCondition { handle, kind: conditional.kind, assigns, default, bodies });
    Some((GraphCondition::CODE, w.bytes))
}

/// Appends the kernels that a conditional node may launch to `found`.
pub fn kernels(conditional: &Conditional, found: &mut Vec<Arc<Prepared>>) {
    for body in &conditional.bodies {
        // A graph with a cycle is never built, so it has no kernels to launch.
        for step in steps(&graphs::lock(body)).unwrap_or_default() {
            match step.work {
                Some(Work::Launch(prepared)) => found.push(prepared),
                Some(Work::Conditional(within)) => kernels(&within, found),
                _ => {}
            }
        }
    }
}
