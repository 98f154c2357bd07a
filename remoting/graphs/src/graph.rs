//! Nodes of a graph and the edges between them.

use crate::user_object::Held;
use crate::{Dependency, Edge, NodeId, Result};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Debug)]
pub struct Node<W> {
    pub work: W,
    /// The node from which this node was cloned.
    pub original: Option<NodeId>,
    /// Whether an executable graph runs the node (`cuGraphNodeSetEnabled`).
    pub enabled: bool,
    pub(crate) after: Vec<Dependency>,
}

impl<W> Node<W> {
    /// Returns the dependencies in the order that the program gave.
    pub fn dependencies(&self) -> &[Dependency] {
        &self.after
    }
}

/// The owner of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Owner {
    #[default]
    Program,
    /// A child graph node. The graph is a copy of the program's graph.
    Node,
    /// A conditional node, which chooses the graph that runs.
    Choice,
    /// A child graph node. The program moved its own graph into it (`CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`).
    Moved,
}

#[derive(Clone, Debug)]
pub struct Graph<W> {
    pub(crate) nodes: BTreeMap<NodeId, Node<W>>,
    /// The references of the graph to user objects.
    pub(crate) held: Vec<Held>,
    pub(crate) owner: Owner,
}

impl<W> Default for Graph<W> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), held: Vec::new(), owner: Owner::Program }
    }
}

/// A graph that the program has a handle to, and that a capture may extend.
pub type SharedGraph<W> = Arc<Mutex<Graph<W>>>;

/// Locks a graph. A panic in another thread does not matter, because each change of a graph is made in one step.
pub fn lock<W>(graph: &SharedGraph<W>) -> MutexGuard<'_, Graph<W>> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn check(valid: bool) -> Result<()> {
    if valid { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

impl<W> Graph<W> {
    /// Returns all nodes, the oldest first.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node<W>)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns a node of this graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the node is not in this graph.
    pub fn node(&self, id: NodeId) -> Result<&Node<W>> {
        self.nodes.get(&id).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns a node of this graph, to change it.
    ///
    /// # Errors
    /// The same errors as [`Self::node`].
    pub fn node_mut(&mut self, id: NodeId) -> Result<&mut Node<W>> {
        self.nodes.get_mut(&id).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Removes a node and all edges to and from the node.
    ///
    /// # Errors
    /// The same errors as [`Self::node`].
    pub fn remove(&mut self, id: NodeId) -> Result<Node<W>> {
        let node = self.nodes.remove(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.nodes.values_mut().for_each(|other| other.after.retain(|each| each.on != id));
        Ok(node)
    }

    /// Removes edges. If one edge is refused, no edge is removed.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an edge that does not exist or is given twice.
    pub fn disconnect(&mut self, edges: &[(Dependency, NodeId)]) -> Result<()> {
        let distinct: BTreeSet<_> = edges.iter().collect();
        check(distinct.len() == edges.len())?;
        for (from, to) in edges {
            check(self.node(*to)?.after.contains(from))?;
        }
        for (from, to) in edges {
            self.node_mut(*to)?.after.retain(|each| each != from);
        }
        Ok(())
    }

    /// Returns the nodes that have no dependencies.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, node)| node.after.is_empty()).map(|(id, _)| id)
    }

    /// Returns all edges, each as the dependency and the node that waits. They are sorted by the node that waits.
    pub fn edges(&self) -> impl Iterator<Item = (Dependency, NodeId)> {
        self.nodes().flat_map(|(id, node)| node.after.iter().map(move |from| (*from, id)))
    }

    /// Returns the nodes that wait for the node `id`, with their edges.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = (NodeId, Edge)> {
        self.edges().filter(move |(from, _)| from.on == id).map(|(from, to)| (to, from.edge))
    }

    /// Returns all nodes in an order in which each node comes after its dependencies. Of several possible nodes, the
    /// oldest comes first.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a cycle.
    pub fn order(&self) -> Result<Vec<NodeId>> {
        let mut waits: BTreeMap<NodeId, usize> = self.nodes().map(|(id, node)| (id, node.after.len())).collect();
        let mut dependents: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (from, to) in self.edges() {
            dependents.entry(from.on).or_default().push(to);
        }
        let mut ready: BTreeSet<NodeId> = self.roots().collect();
        let mut order = Vec::with_capacity(self.len());
        while let Some(id) = ready.pop_first() {
            order.push(id);
            for to in dependents.get(&id).into_iter().flatten() {
                let left = waits.entry(*to).or_default();
                *left -= 1;
                if *left == 0 {
                    ready.insert(*to);
                }
            }
        }
        check(order.len() == self.len())?;
        Ok(order)
    }

    /// Returns a copy of the graph with new nodes. `mint` creates the handles of the nodes, `copy` copies their work.
    pub fn clone_with<V>(&self, mut mint: impl FnMut() -> NodeId, mut copy: impl FnMut(&W) -> V) -> Graph<V> {
        let names: BTreeMap<NodeId, NodeId> = self.nodes.keys().map(|&id| (id, mint())).collect();
        let renamed = |each: &Dependency| Dependency { on: names[&each.on], edge: each.edge };
        let node = |id: NodeId, node: &Node<W>, work: V| Node {
            work,
            original: Some(id),
            enabled: node.enabled,
            after: node.after.iter().map(renamed).collect(),
        };
        let nodes = self.nodes.iter().map(|(&id, each)| (names[&id], node(id, each, copy(&each.work)))).collect();
        Graph { nodes, held: self.held.clone(), owner: Owner::Program }
    }

    /// Returns the node that was cloned from `original`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if this graph has no such node.
    pub fn clone_of(&self, original: NodeId) -> Result<NodeId> {
        let found = self.nodes().find(|(_, node)| node.original == Some(original));
        found.map(|(id, _)| id).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(nodes: &[NodeId]) -> Vec<Dependency> {
        nodes.iter().map(|&id| id.into()).collect()
    }

    /// Returns a graph of four nodes: 1 before 2 and 3, and both of them before 4.
    fn diamond() -> Graph<&'static str> {
        let mut graph = Graph::default();
        for (id, work, waits) in [(1, "a", &[][..]), (2, "b", &[1]), (3, "c", &[1]), (4, "d", &[2, 3])] {
            graph.add(id, work, &after(waits)).unwrap();
        }
        graph
    }

    #[test]
    fn roots_dependents_and_order_follow_the_edges() {
        let graph = diamond();
        assert_eq!(graph.roots().collect::<Vec<_>>(), [1]);
        assert_eq!(graph.dependents(1).map(|(id, _)| id).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(graph.order().unwrap(), [1, 2, 3, 4]);
        assert_eq!(graph.edges().count(), 4);
    }

    #[test]
    fn a_cycle_has_no_order() {
        let mut graph = diamond();
        graph.connect(&[(4.into(), 1)]).unwrap();
        assert_eq!(graph.order(), Err(CUDA_ERROR_INVALID_VALUE));
        graph.disconnect(&[(4.into(), 1)]).unwrap();
        assert!(graph.order().is_ok());
    }

    #[test]
    fn wrong_edges_change_nothing() {
        let mut graph = diamond();
        let wrong: [&[(Dependency, NodeId)]; 5] =
            [&[(1.into(), 2)], &[(1.into(), 1)], &[(9.into(), 1)], &[(1.into(), 9)], &[(1.into(), 4), (1.into(), 4)]];
        for edges in wrong {
            assert_eq!(graph.connect(edges), Err(CUDA_ERROR_INVALID_VALUE), "{edges:?}");
        }
        assert_eq!(graph.disconnect(&[(2.into(), 4), (1.into(), 4)]), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(graph.edges().count(), 4);
        assert_eq!(graph.add(5, "e", &after(&[4, 4])), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(graph.add(5, "e", &after(&[6])), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn one_pair_may_have_edges_of_different_kinds() {
        let mut graph = diamond();
        let programmatic = Dependency { on: 1, edge: Edge::PROGRAMMATIC };
        graph.connect(&[(programmatic, 2)]).unwrap();
        assert_eq!(graph.node(2).unwrap().dependencies().len(), 2);
        assert_eq!(graph.order().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn only_kernels_have_programmatic_edges() {
        let mut graph = diamond();
        graph.add(5, "copy", &[]).unwrap();
        let edge = |on, edge| Dependency { on, edge };
        for (from, to) in
            [(edge(1, Edge::PROGRAMMATIC), 5), (edge(5, Edge::LAUNCH_ORDER), 4), (edge(5, Edge::AT_BLOCK_START), 4)]
        {
            assert_eq!(graph.connect(&[(from, to)]), Err(CUDA_ERROR_INVALID_VALUE), "{from:?} {to}");
        }
        assert_eq!(graph.add(6, "copy", &[edge(1, Edge::PROGRAMMATIC)]), Err(CUDA_ERROR_INVALID_VALUE));
        graph.add(6, "copy", &[edge(1, Edge::LAUNCH_ORDER)]).unwrap();
        assert_eq!(graph.edges().count(), 5);
    }

    #[test]
    fn a_removed_node_takes_its_edges_with_it() {
        let mut graph = diamond();
        graph.remove(1).unwrap();
        assert_eq!(graph.roots().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(graph.remove(1).err(), Some(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn a_clone_has_nodes_of_its_own_and_knows_the_originals() {
        let graph = diamond();
        let mut next = 10;
        let mint = || {
            next += 1;
            next
        };
        let clone = graph.clone_with(mint, |work| work.to_uppercase());
        assert_eq!(clone.order().unwrap(), [11, 12, 13, 14]);
        assert_eq!(clone.clone_of(3), Ok(13));
        assert_eq!(clone.clone_of(5), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(clone.node(14).unwrap().work, "D");
        assert_eq!(clone.node(14).unwrap().dependencies(), after(&[12, 13]));
    }
}
