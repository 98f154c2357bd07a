//! Conditional nodes of graphs, which read a condition and then run one of their graphs.

use super::condition::Condition;
use super::item::Work;
use crate::engine::Fault;
use driverapi::constants::*;
use driverapi::errors::CUDA_ERROR_LAUNCH_FAILED;
use graphs::{Graph, SharedGraph, lock, steps};
use std::sync::Arc;

/// A node that chooses which of its graphs runs, and how often.
pub type Conditional = graphs::Conditional<Work, Condition>;

/// Returns the graph that a conditional node runs next, or `None` if the node is done.
fn choose(conditional: &Conditional) -> Option<usize> {
    let value = conditional.condition.get() as usize;
    match conditional.kind {
        CU_GRAPH_COND_TYPE_SWITCH => Some(value).filter(|which| *which < conditional.bodies.len()),
        _ if value != 0 => Some(0),
        CU_GRAPH_COND_TYPE_IF => Some(1).filter(|which| *which < conditional.bodies.len()),
        _ => None,
    }
}

/// Runs a conditional node on a stream's thread. On a null GPU this does nothing, because no kernel runs that could end
/// a loop.
pub fn run(conditional: &Conditional) -> Result<(), Fault> {
    let flat = |body: &SharedGraph<Work>| {
        let steps = steps(&lock(body)).map_err(|code| Fault { code, message: "a graph with a cycle".to_owned() })?;
        Ok(steps.into_iter().filter_map(|step| step.work).collect::<Vec<Work>>())
    };
    if conditional.condition.is_null {
        return Ok(());
    }
    let bodies: Vec<Vec<Work>> = conditional.bodies.iter().map(flat).collect::<Result<_, _>>()?;
    while let Some(which) = choose(conditional) {
        if conditional.condition.context.is_stopped() {
            let message = "the graph was stopped in a conditional node".to_owned();
            return Err(Fault { code: CUDA_ERROR_LAUNCH_FAILED, message });
        }
        bodies[which].iter().try_for_each(Work::run)?;
        if conditional.kind != CU_GRAPH_COND_TYPE_WHILE {
            break;
        }
    }
    Ok(())
}

/// Adds the conditions of a graph and of the graphs in its nodes to `found`.
pub fn conditions_of(graph: &Graph<Work>, found: &mut Vec<Arc<Condition>>) {
    for (_, node) in graph.nodes() {
        if let Work::Conditional(conditional) = &node.work {
            found.push(Arc::clone(&conditional.condition));
            conditional.bodies.iter().for_each(|body| conditions_of(&lock(body), found));
        }
    }
}
