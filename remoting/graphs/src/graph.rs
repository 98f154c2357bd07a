//! Nodes and the edges between them.

use crate::user_object::Held;
use crate::{Dependency, Edge, Owner, Result, Work};
use driverapi::constants::CU_GRAPH_NODE_TYPE_KERNEL;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::{BTreeMap, BTreeSet};

/// The program's handle of a node. No two nodes of a process share one, and later nodes have larger ones.
pub type NodeId = usize;

#[derive(Clone, Debug)]
pub struct Node<W> {
    pub work: W,
    /// The node that this one was cloned from.
    pub original: Option<NodeId>,
    /// Whether an executable runs it: `cuGraphNodeSetEnabled`.
    pub enabled: bool,
    after: Vec<Dependency>,
}

impl<W> Node<W> {
    /// The dependencies, in the program's order.
    pub fn dependencies(&self) -> &[Dependency] {
        &self.after
    }
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

#[derive(Clone, Debug)]
pub struct Graph<W> {
    nodes: BTreeMap<NodeId, Node<W>>,
    /// User objects that live as long as the graph.
    pub(crate) held: Vec<Held>,
    pub(crate) owner: Owner,
}

impl<W> Default for Graph<W> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), held: Vec::new(), owner: Owner::Program }
    }
}

fn check(valid: bool) -> Result<()> {
    if valid { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

pub(crate) fn is_kernel(kind: u32) -> bool {
    kind == CU_GRAPH_NODE_TYPE_KERNEL
}

impl<W> Graph<W> {
    /// All nodes, the oldest first.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node<W>)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a node that is not of this graph.
    pub fn node(&self, id: NodeId) -> Result<&Node<W>> {
        self.nodes.get(&id).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// # Errors
    /// As [`Self::node`].
    pub fn node_mut(&mut self, id: NodeId) -> Result<&mut Node<W>> {
        self.nodes.get_mut(&id).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Removes a node with all edges to and from it.
    ///
    /// # Errors
    /// As [`Self::node`].
    pub fn remove(&mut self, id: NodeId) -> Result<Node<W>> {
        let node = self.nodes.remove(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.nodes.values_mut().for_each(|other| other.after.retain(|each| each.on != id));
        Ok(node)
    }

    /// Removes edges. None is removed if one is refused.
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

    /// Nodes that wait for no other.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, node)| node.after.is_empty()).map(|(id, _)| id)
    }

    /// All edges, by the node that waits.
    pub fn edges(&self) -> impl Iterator<Item = (Dependency, NodeId)> {
        self.nodes().flat_map(|(id, node)| node.after.iter().map(move |from| (*from, id)))
    }

    /// The nodes that wait for one, with the edges between.
    pub fn dependents(&self, id: NodeId) -> impl Iterator<Item = (NodeId, Edge)> {
        self.edges().filter(move |(from, _)| from.on == id).map(|(from, to)| (to, from.edge))
    }

    /// The nodes in an order in which each comes behind those that it waits for; of several, the oldest first.
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

    /// A copy with nodes of its own; `mint` makes their handles, `copy` their work.
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

    /// The node that was cloned from `original`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if there is none.
    pub fn clone_of(&self, original: NodeId) -> Result<NodeId> {
        let found = self.nodes().find(|(_, node)| node.original == Some(original));
        found.map(|(id, _)| id).ok_or(CUDA_ERROR_INVALID_VALUE)
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
            Some(child) => crate::lock(child).uses_memory(),
            None => node.work.memory().is_some(),
        })
    }

    /// Whether the graph or one within it has a conditional node.
    pub fn has_conditions(&self) -> bool {
        let within = |node: &Node<W>| node.work.child().is_some_and(|child| crate::lock(child).has_conditions());
        self.nodes.values().any(|node| !node.work.bodies().is_empty() || within(node))
    }

    /// Whether user objects live as long as the graph or one within it.
    pub fn holds_objects(&self) -> bool {
        let child_holds = |node: &Node<W>| {
            node.work.child().into_iter().chain(node.work.bodies()).any(|within| crate::lock(within).holds_objects())
        };
        !self.held.is_empty() || self.nodes.values().any(child_holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(nodes: &[NodeId]) -> Vec<Dependency> {
        nodes.iter().map(|&id| id.into()).collect()
    }

    /// 1 before 2 and 3, both before 4.
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
