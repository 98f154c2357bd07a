//! The work of nodes, as far as graphs need to know it, and the checks that depend on the work.

use crate::graph::check;
use crate::{Dependency, Graph, Memory, MemoryUse, Node, NodeId, Result, SharedGraph, lock};
use driverapi::constants::CU_GRAPH_NODE_TYPE_KERNEL;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The work of a node. The client and the software GPU each implement this trait.
pub trait Work: Clone {
    /// Returns the kind, a `CUgraphNodeType`.
    fn kind(&self) -> u32;

    /// Returns the memory that the node allocates or frees, or `None` if it does neither.
    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)>;

    /// Returns the child graph, or `None` if the node is not a child graph node.
    fn child(&self) -> Option<&SharedGraph<Self>>;

    /// Returns the same work with another child graph, for a copy of the graph.
    #[must_use]
    fn with_child(&self, child: SharedGraph<Self>) -> Self;

    /// Returns the body graphs of a conditional node.
    fn bodies(&self) -> &[SharedGraph<Self>] {
        &[]
    }

    /// Returns the same work with other body graphs, for a copy of the graph.
    #[must_use]
    fn with_bodies(&self, _: Vec<SharedGraph<Self>>) -> Self {
        self.clone()
    }
}

pub(crate) fn is_kernel(kind: u32) -> bool {
    kind == CU_GRAPH_NODE_TYPE_KERNEL
}

impl<W: Work> Node<W> {
    /// Replaces the work of the node. Returns the old work. The kind of the work must stay the same.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for work of another kind.
    pub fn set_work(&mut self, work: W) -> Result<W> {
        check(self.work.kind() == work.kind())?;
        Ok(std::mem::replace(&mut self.work, work))
    }
}

impl<W: Work> Graph<W> {
    /// Adds a node that depends on other nodes of this graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a dependency is given twice or is not in this graph, or if the nodes cannot have
    /// the edge. `CUDA_ERROR_NOT_SUPPORTED` for a memory node in the graph of a child graph node.
    pub fn add(&mut self, id: NodeId, work: W, after: &[Dependency]) -> Result<()> {
        let distinct: BTreeSet<_> = after.iter().collect();
        check(distinct.len() == after.len())?;
        after.iter().try_for_each(|each| self.check_edge(*each, work.kind()))?;
        self.check_memory(&work)?;
        self.nodes.insert(id, Node { work, original: None, enabled: true, after: after.to_vec() });
        Ok(())
    }

    /// Adds edges. If one edge is refused, no edge is added.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an edge that exists, that is given twice, that connects a node with itself, whose
    /// nodes are not both in this graph, or that the nodes cannot have.
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

    /// Checks that the dependencies are nodes of this graph that may have these edges.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a node is not in this graph, or cannot be the source of the edge.
    pub(crate) fn check_sources(&self, dependencies: &[Dependency]) -> Result<()> {
        dependencies.iter().try_for_each(|each| self.check_edge(*each, CU_GRAPH_NODE_TYPE_KERNEL))
    }

    fn check_edge(&self, from: Dependency, to_kind: u32) -> Result<()> {
        check(from.edge.suits(is_kernel(self.node(from.on)?.work.kind()), is_kernel(to_kind)))
    }

    /// Replaces a node's work. Returns the old work. The kind of the work must stay the same.
    ///
    /// # Errors
    /// The same errors as [`Node::set_work`] and [`Self::node`].
    pub fn set_work(&mut self, id: NodeId, work: W) -> Result<W> {
        self.node_mut(id)?.set_work(work)
    }

    /// Whether the graph, or a graph inside it, allocates or frees memory.
    pub fn uses_memory(&self) -> bool {
        self.nodes.values().any(|node| match node.work.child() {
            Some(child) => lock(child).uses_memory(),
            None => node.work.memory().is_some(),
        })
    }

    /// Whether the graph, or a graph inside it, has a conditional node.
    pub fn has_conditions(&self) -> bool {
        let within = |node: &Node<W>| node.work.child().is_some_and(|child| lock(child).has_conditions());
        self.nodes.values().any(|node| !node.work.bodies().is_empty() || within(node))
    }

    /// Whether the graph, or a graph inside it, has references to user objects.
    pub fn holds_objects(&self) -> bool {
        let child_holds = |node: &Node<W>| {
            node.work.child().into_iter().chain(node.work.bodies()).any(|within| lock(within).holds_objects())
        };
        !self.held.is_empty() || self.nodes.values().any(child_holds)
    }
}

/// The work of nodes in tests. A name that begins with "copy" is not a kernel.
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
