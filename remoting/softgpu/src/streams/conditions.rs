//! Conditional nodes of graphs. A condition is a word of device memory, and its handle is the word's address, which
//! kernels write by `cudaGraphSetConditional`.

use crate::engine::Fault;
use crate::ffi::R;
use crate::memory::allocations::Kind;
use crate::memory::arena;
use crate::process::context::Context;
use crate::process::driver::Driver;
use crate::streams::work::Work;
use driverapi::constants::*;
use driverapi::errors::*;
use graphs::{Graph, SharedGraph, lock, steps};
use std::sync::Arc;

pub struct Condition {
    pub address: u64,
    context: Arc<Context>,
    /// The handle of the graph that may have a node of it.
    graph: usize,
    /// The value at the start of each launch.
    default: Option<u32>,
    is_null: bool,
}

/// A node that chooses which of its graphs runs, and how often.
pub type Conditional = graphs::Conditional<Work, Condition>;

impl Condition {
    fn get(&self) -> u32 {
        let mut value = 0u32;
        arena::copy((&raw mut value).expose_provenance() as u64, self.address, size_of::<u32>() as u64);
        value
    }

    fn set(&self, value: u32) {
        arena::copy(self.address, (&raw const value).expose_provenance() as u64, size_of::<u32>() as u64);
    }

    pub fn is_of(&self, context: usize) -> bool {
        self.context.id == context
    }

    fn assign_default(&self) {
        if let Some(value) = self.default {
            self.set(value);
        }
    }
}

/// Returns the graph that a conditional node does next.
fn choose(conditional: &Conditional) -> Option<usize> {
    let value = conditional.condition.get() as usize;
    match conditional.kind {
        CU_GRAPH_COND_TYPE_SWITCH => Some(value).filter(|which| *which < conditional.bodies.len()),
        _ if value != 0 => Some(0),
        CU_GRAPH_COND_TYPE_IF => Some(1).filter(|which| *which < conditional.bodies.len()),
        _ => None,
    }
}

/// Does a conditional node, on a stream's thread. A null GPU runs no kernel that could end a loop, so it does nothing.
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

impl Driver {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a handle that is not a graph's, `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn create_condition(&self, graph: usize, context: Arc<Context>, default: Option<u32>) -> R<u64> {
        self.graphs.graph(graph)?;
        let size = size_of::<u32>() as u64;
        let address = self.memory.allocate(size, Kind::Globals, context.device.ordinal, context.id)?.base;
        let condition = Condition { address, context, graph, default, is_null: self.model().null };
        condition.assign_default();
        self.conditions.insert(address as usize, Arc::new(condition));
        Ok(address)
    }

    /// Makes a node for a graph; the graphs that it chooses from are still empty.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a handle that is not of this graph, or a number of graphs that the kind cannot
    /// have.
    pub fn conditional(&self, graph: usize, handle: u64, kind: u32, size: u32) -> R<Conditional> {
        let condition = self.conditions.get(handle as usize).filter(|condition| condition.graph == graph);
        let condition = condition.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Conditional::new(&self.graphs, condition, kind, size)
    }
}

/// The conditions of a graph, and of those within.
pub fn of_graph(graph: &Graph<Work>, found: &mut Vec<Arc<Condition>>) {
    for (_, node) in graph.nodes() {
        if let Work::Conditional(conditional) = &node.work {
            found.push(Arc::clone(&conditional.condition));
            conditional.bodies.iter().for_each(|body| of_graph(&lock(body), found));
        }
    }
}

pub fn assign_defaults(conditions: &[Arc<Condition>]) {
    conditions.iter().for_each(|condition| condition.assign_default());
}
