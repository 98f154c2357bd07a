//! Conditional nodes of graphs. A condition's handle is a number of ours, by which kernels get it as a parameter; when
//! a graph is built the worker puts the driver's in its place, so that a graph can be built as often as the program
//! wants.

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

/// Numbers that no other parameter of a kernel has by chance.
static NEXT: AtomicU64 = AtomicU64::new(0xc0_4d17_1094_0000);

static CONDITIONS: Mutex<Option<HashMap<u64, Arc<Condition>>>> = Mutex::new(None);

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a handle that is not a graph's.
pub fn create(graph: usize, live: &Live, default: Option<u32>) -> Result<u64, Code> {
    GRAPHS.graph(graph)?;
    let handle = NEXT.fetch_add(1, Relaxed);
    let condition = Condition { handle, graph, context: live.id, default };
    lock(&CONDITIONS).get_or_insert_default().insert(handle, Arc::new(condition));
    Ok(handle)
}

/// Makes a node for a graph; the graphs that it chooses from are still empty.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a handle that is not of this graph, or a number of graphs that the kind cannot have.
pub fn node(graph: usize, handle: u64, kind: u32, size: u32) -> Result<Conditional, Code> {
    let known = lock(&CONDITIONS).get_or_insert_default().get(&handle).cloned();
    let condition = known.filter(|condition| condition.graph == graph).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Conditional::new(&GRAPHS, condition, kind, size)
}

/// A step as the worker takes it, if the device does it by itself.
pub fn step(step: &Step<Work>, live: &Live) -> Option<(u32, Vec<u8>)> {
    match &step.work {
        // The memory was settled before the launch.
        None | Some(Work::Empty | Work::Allocate(_) | Work::Free(_)) => Some((0, Vec::new())),
        Some(Work::Conditional(conditional)) => command(conditional, live),
        Some(work) => work.command(live),
    }
}

/// Describes steps for the worker to build; the first one has the place `start`.
pub fn described(steps: &[Step<Work>], start: usize, works: Vec<(u32, Vec<u8>)>) -> Vec<GraphNode> {
    let edge = |&(at, edge): &(usize, graphs::Edge)| {
        let graphs::Edge { from_port, to_port, kind } = edge;
        Some(GraphEdge { place: at.checked_sub(start)? as u32, from_port, to_port, kind })
    };
    let after = |step: &Step<Work>| step.after.iter().filter_map(edge).collect();
    steps.iter().zip(works).map(|(step, (code, body))| GraphNode { after: after(step), code, body }).collect()
}

/// The command that does a conditional node, if the device does all of it by itself.
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

/// The kernels that a conditional node may launch.
pub fn kernels(conditional: &Conditional, found: &mut Vec<Arc<Prepared>>) {
    for body in &conditional.bodies {
        // A graph without an order is not built.
        for step in steps(&graphs::lock(body)).unwrap_or_default() {
            match step.work {
                Some(Work::Launch(prepared)) => found.push(prepared),
                Some(Work::Conditional(within)) => kernels(&within, found),
                _ => {}
            }
        }
    }
}
