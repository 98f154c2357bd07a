//! Conditional nodes: their body graphs, and the kinds of nodes that CUDA allows in these graphs.

use crate::{Graph, Owner, Registry, Result, SharedGraph, Work, lock, steps};
use driverapi::constants::*;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::Arc;

/// A node that chooses at run time which of its body graphs runs, and how often.
pub struct Conditional<W, C> {
    pub condition: Arc<C>,
    pub kind: u32,
    pub bodies: Vec<SharedGraph<W>>,
    /// The handles of the body graphs, in the form that the program receives. The list lives as long as the node.
    pub list: Arc<Vec<usize>>,
}

impl<W: Work, C> Conditional<W, C> {
    /// Creates a node with `size` empty body graphs.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a node of this kind cannot have that number of graphs.
    pub fn new(registry: &Registry<W>, condition: Arc<C>, kind: u32, size: u32) -> Result<Conditional<W, C>> {
        let fits = match kind {
            CU_GRAPH_COND_TYPE_IF => matches!(size, 1 | 2),
            CU_GRAPH_COND_TYPE_WHILE => size == 1,
            CU_GRAPH_COND_TYPE_SWITCH => size > 0,
            _ => false,
        };
        if !fits {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let body = |_| {
            let body = registry.embed(&Graph::default());
            lock(&body).owner = Owner::Choice;
            body
        };
        let bodies: Vec<SharedGraph<W>> = (0..size).map(body).collect();
        let list = bodies.iter().map(|body| registry.handle_of(body)).collect();
        Ok(Conditional { condition, kind, bodies, list: Arc::new(list) })
    }

    /// Returns a node with the same condition and other body graphs.
    #[must_use]
    pub fn with_bodies(&self, bodies: Vec<SharedGraph<W>>) -> Conditional<W, C> {
        Conditional { condition: Arc::clone(&self.condition), kind: self.kind, bodies, list: Arc::clone(&self.list) }
    }
}

impl<W, C> Clone for Conditional<W, C> {
    fn clone(&self) -> Conditional<W, C> {
        let (condition, list) = (Arc::clone(&self.condition), Arc::clone(&self.list));
        Conditional { condition, kind: self.kind, bodies: self.bodies.clone(), list }
    }
}

/// Checks the body graphs of all conditional nodes of a graph, at every depth.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if a body graph contains a kind of node that CUDA does not allow there.
pub fn check_bodies<W: Work>(graph: &Graph<W>) -> Result<()> {
    graph.nodes().flat_map(|(_, node)| node.work.bodies()).try_for_each(|body| check_body(&lock(body)))
}

fn check_body<W: Work>(body: &Graph<W>) -> Result<()> {
    for (_, node) in body.nodes() {
        match node.work.kind() {
            CU_GRAPH_NODE_TYPE_KERNEL
            | CU_GRAPH_NODE_TYPE_MEMCPY
            | CU_GRAPH_NODE_TYPE_MEMSET
            | CU_GRAPH_NODE_TYPE_EMPTY
            | CU_GRAPH_NODE_TYPE_CONDITIONAL => {}
            CU_GRAPH_NODE_TYPE_GRAPH => node.work.child().map_or(Ok(()), |child| check_body(&lock(child)))?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    steps(body)?;
    check_bodies(body)
}
