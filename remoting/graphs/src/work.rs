//! The work of nodes, and what graphs check and tell of it.

use crate::graph::check;
use crate::{Dependency, Graph, Memory, MemoryUse, Node, NodeId, Result, SharedGraph, lock};
use driverapi::constants::CU_GRAPH_NODE_TYPE_KERNEL;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The work of a node.
pub trait Work: Clone {
    /// A `CUgraphNodeType`.
    fn kind(&self) -> u32;

    /// The memory that the node allocates or frees, if it does.
    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)>;

    /// The graph that the node is, if it is one.
    fn child(&self) -> Option<&SharedGraph<Self>>;

    /// The same node for a copy of its graph.
    #[must_use]
    fn with_child(&self, child: SharedGraph<Self>) -> Self;

    /// The graphs that a conditional node chooses from.
    fn bodies(&self) -> &[SharedGraph<Self>] {
        &[]
    }

    /// The same node for a copy of its graph.
    #[must_use]
    fn with_bodies(&self, _: Vec<SharedGraph<Self>>) -> Self {
        self.clone()
    }
}

pub(crate) fn is_kernel(kind: u32) -> bool {
    kind == CU_GRAPH_NODE_TYPE_KERNEL
}

impl<W: Work> Node<W> {
    /// Changes its work, within the same kind. Returns the old work.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for work of another kind.
    pub fn set_work(&mut self, work: W) -> Result<W> {
        check(self.work.kind() == work.kind())?;
        Ok(std::mem::replace(&mut self.work, work))
    }
}

impl<W: Work> Graph<W> {
    /// Adds a node that waits for others of this graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a dependency that is given twice or not of this graph, or an edge that the
    /// nodes cannot have; `CUDA_ERROR_NOT_SUPPORTED` for memory nodes in a graph that is a child graph node's.
    pub fn add(&mut self, id: NodeId, work: W, after: &[Dependency]) -> Result<()> {
        let distinct: BTreeSet<_> = after.iter().collect();
        check(distinct.len() == after.len())?;
        after.iter().try_for_each(|each| self.check_edge(*each, work.kind()))?;
        self.check_memory(&work)?;
        self.nodes.insert(id, Node { work, original: None, enabled: true, after: after.to_vec() });
        Ok(())
    }

    /// Adds edges. None is added if one is refused.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an edge that exists, that is given twice, whose ends are one node or not both of
    /// this graph, or that they cannot have.
    pub fn connect(&mut self, edges: &[(Dependency, NodeId)]) -> Result<()> {
        let distinct: BTreeSet<_> = edges.iter().collect();
        check(distinct.len() == edges.len())?;
        for (from, to) in edges {
            let node = self.node(*to)?;
            check(from.on != *to && !node.after.contains(from))?;
            self.check_edge(*from, node.work.kind())?;
        }
        for (from, to) in edges {
            self.node_mut(*to)?.after.push(*from);
        }
        Ok(())
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a node that is not of this graph, or an edge that no node can have from it.
    pub(crate) fn check_sources(&self, dependencies: &[Dependency]) -> Result<()> {
        dependencies.iter().try_for_each(|each| self.check_edge(*each, CU_GRAPH_NODE_TYPE_KERNEL))
    }

    fn check_edge(&self, from: Dependency, to_kind: u32) -> Result<()> {
        check(from.edge.suits(is_kernel(self.node(from.on)?.work.kind()), is_kernel(to_kind)))
    }

    /// Changes a node's work, within the same kind. Returns the old work.
    ///
    /// # Errors
    /// As [`Node::set_work`] and [`Self::node`].
    pub fn set_work(&mut self, id: NodeId, work: W) -> Result<W> {
        self.node_mut(id)?.set_work(work)
    }

    /// Whether the graph or one within it allocates or frees memory.
    pub fn uses_memory(&self) -> bool {
        self.nodes.values().any(|node| match node.work.child() {
            Some(child) => lock(child).uses_memory(),
            None => node.work.memory().is_some(),
        })
    }

    /// Whether the graph or one within it has a conditional node.
    pub fn has_conditions(&self) -> bool {
        let within = |node: &Node<W>| node.work.child().is_some_and(|child| lock(child).has_conditions());
        self.nodes.values().any(|node| !node.work.bodies().is_empty() || within(node))
    }

    /// Whether user objects live as long as the graph or one within it.
    pub fn holds_objects(&self) -> bool {
        let child_holds = |node: &Node<W>| {
            node.work.child().into_iter().chain(node.work.bodies()).any(|within| lock(within).holds_objects())
        };
        !self.held.is_empty() || self.nodes.values().any(child_holds)
    }
}

/// Nodes of tests: those whose names begin with "copy" are no kernels.
#[cfg(test)]
impl Work for &'static str {
    fn kind(&self) -> u32 {
        use driverapi::constants::{CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY};
        if self.starts_with("copy") { CU_GRAPH_NODE_TYPE_MEMCPY } else { CU_GRAPH_NODE_TYPE_KERNEL }
    }

    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)> {
        None
    }

    fn child(&self) -> Option<&SharedGraph<Self>> {
        None
    }

    fn with_child(&self, _: SharedGraph<Self>) -> Self {
        self
    }
}
