//! Graphs inside graphs: the graphs of child graph nodes and of conditional nodes, and the owners of such graphs.

use crate::{Graph, Node, NodeId, Owner, Registry, Result, SharedGraph, Work, lock};
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use std::sync::{Arc, PoisonError};

/// Returns the graphs that belong to a node: its child graph, or the bodies of a conditional node.
fn inside<W: Work>(work: &W) -> impl Iterator<Item = &SharedGraph<W>> {
    work.child().into_iter().chain(work.bodies())
}

/// Whether `inner` is `outer`, or is inside `outer` at any depth.
fn is_within<W: Work>(inner: &SharedGraph<W>, outer: &SharedGraph<W>) -> bool {
    let deeper = |node: &Node<W>| inside(&node.work).any(|graph| is_within(inner, graph));
    Arc::ptr_eq(inner, outer) || lock(outer).nodes().any(|(_, node)| deeper(node))
}

impl<W: Work> Graph<W> {
    /// Checks that the program has not moved this graph into a node.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the program has moved the graph into a node. Such a graph cannot be instantiated,
    /// used for an update or added again (CUDA documents no code for this).
    pub fn check_not_moved(&self) -> Result<()> {
        if self.owner == Owner::Moved { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Checks that a node with this work may be added to the graph, with regard to memory nodes.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for a memory node in the graph of a child graph node. The body graphs of a
    /// conditional node may contain memory nodes, because Warp looks for memory nodes there. But a graph with such a
    /// body cannot be instantiated ([`crate::check_bodies`]).
    pub(crate) fn check_memory(&self, work: &W) -> Result<()> {
        let refused = matches!(self.owner, Owner::Node | Owner::Moved) && work.memory().is_some();
        if refused { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
    }

    fn has_clone_of(&self, original: NodeId) -> bool {
        let within = |node: &Node<W>| inside(&node.work).any(|graph| lock(graph).has_clone_of(original));
        self.clone_of(original).is_ok() || self.nodes().any(|(_, node)| within(node))
    }

    /// Calls `act` with the node that was cloned from `original`, in this graph or in a graph inside it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if there is no such node, and the errors of `act`.
    pub fn with_clone<T>(&mut self, original: NodeId, act: impl FnOnce(&mut Node<W>) -> Result<T>) -> Result<T> {
        if let Ok(copy) = self.clone_of(original) {
            return act(self.node_mut(copy)?);
        }
        let graphs = self.nodes().flat_map(|(_, node)| inside(&node.work));
        let found = graphs.filter(|graph| lock(graph).has_clone_of(original)).map(Arc::clone).next();
        lock(&found.ok_or(CUDA_ERROR_INVALID_VALUE)?).with_clone(original, act)
    }
}

impl<W: Work> Registry<W> {
    /// Returns a copy of a graph, for a node to own.
    pub fn embed(&self, graph: &Graph<W>) -> SharedGraph<W> {
        let copy = self.copy(graph);
        lock(&copy).owner = Owner::Node;
        copy
    }

    /// Returns a graph of the program that may be moved into a node.
    ///
    /// # Errors
    /// The same errors as [`Self::graph`], also if a node already owns the graph.
    pub fn to_move(&self, handle: usize) -> Result<SharedGraph<W>> {
        let graph = self.graph(handle)?;
        let owner = lock(&graph).owner;
        if owner == Owner::Program { Ok(graph) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Calls `act`, which adds `work` to `graph`. If `work` contains a graph of the program, that graph then belongs to
    /// its node. Fails with `CUDA_ERROR_INVALID_VALUE`, without calling `act`, if a graph would contain itself.
    pub(crate) fn give<T>(&self, graph: &SharedGraph<W>, work: &W, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let moved = work.child().filter(|child| lock(child).owner == Owner::Program).cloned();
        if moved.as_ref().is_some_and(|child| is_within(graph, child)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let done = act()?;
        if let Some(child) = moved {
            lock(&child).owner = Owner::Moved;
        }
        Ok(done)
    }

    /// Replaces the work of a node in a graph of the program. The kind of the work must stay the same.
    ///
    /// # Errors
    /// The same errors as [`Graph::set_work`] and [`Self::graph_of`].
    pub fn set_work(&self, node: NodeId, work: W) -> Result<()> {
        let graph = self.graph_of(node)?;
        let old = self.give(&graph, &work.clone(), || lock(&graph).set_work(node, work))?;
        self.forget_inside(&old);
        Ok(())
    }

    /// Removes the handles of the graphs inside a removed node.
    pub(crate) fn forget_inside(&self, work: &W) {
        for graph in inside(work) {
            let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
            graphs.retain(|_, other| !Arc::ptr_eq(other, graph));
            drop(graphs);
            self.forget_nodes(graph);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, MemoryUse};
    use driverapi::constants::{CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone)]
    enum Test {
        Does(u32),
        Child(SharedGraph<Test>),
        Chooses(Vec<SharedGraph<Test>>),
    }

    impl Work for Test {
        fn kind(&self) -> u32 {
            if self.child().is_some() { CU_GRAPH_NODE_TYPE_GRAPH } else { CU_GRAPH_NODE_TYPE_KERNEL }
        }

        fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)> {
            None
        }

        fn child(&self) -> Option<&SharedGraph<Self>> {
            if let Test::Child(child) = self { Some(child) } else { None }
        }

        fn with_child(&self, child: SharedGraph<Self>) -> Self {
            Test::Child(child)
        }

        fn bodies(&self) -> &[SharedGraph<Self>] {
            if let Test::Chooses(bodies) = self { bodies } else { &[] }
        }

        fn with_bodies(&self, bodies: Vec<SharedGraph<Self>>) -> Self {
            Test::Chooses(bodies)
        }
    }

    fn mint() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    fn number(graph: &SharedGraph<Test>, original: NodeId) -> Result<u32> {
        lock(graph).with_clone(original, |node| if let Test::Does(what) = node.work { Ok(what) } else { Err(0) })
    }

    #[test]
    fn a_copy_is_changed_by_the_nodes_of_the_graphs_within() {
        let registry = Registry::new(mint);
        let graphs: [SharedGraph<Test>; 4] = Default::default();
        let [outer, middle, inner, body] = &graphs;
        let plain = registry.add(inner, Test::Does(1), &[]).unwrap();
        let chosen = registry.add(body, Test::Does(2), &[]).unwrap();
        registry.add(middle, Test::Child(Arc::clone(inner)), &[]).unwrap();
        registry.add(middle, Test::Chooses(vec![Arc::clone(body)]), &[]).unwrap();
        registry.add(outer, Test::Child(Arc::clone(middle)), &[]).unwrap();
        let copy = registry.copy(&lock(outer));
        let set = |original, what| lock(&copy).with_clone(original, |node| node.set_work(Test::Does(what)).map(drop));
        set(plain, 10).unwrap();
        set(chosen, 20).unwrap();
        assert_eq!((number(&copy, plain), number(&copy, chosen)), (Ok(10), Ok(20)));
        assert_eq!(number(&registry.copy(&lock(outer)), plain), Ok(1), "the graph itself has not changed");
        assert_eq!(set(mint(), 1), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(number(&registry.copy(&lock(&copy)), plain), Err(CUDA_ERROR_INVALID_VALUE), "a copy of a copy");
    }

    #[test]
    fn a_graph_is_given_to_one_node_and_never_to_itself() {
        let registry = Registry::new(mint);
        let graphs: [SharedGraph<Test>; 3] = Default::default();
        let [outer, inner, other] = graphs.each_ref().map(|graph| registry.handle_of(graph));
        let give = |graph: usize, to: usize| {
            let child = registry.to_move(graph)?;
            registry.add(&registry.graph(to)?, Test::Child(child), &[])
        };
        assert_eq!(give(outer, outer), Err(CUDA_ERROR_INVALID_VALUE));
        let node = give(inner, outer).unwrap();
        assert_eq!(give(inner, other), Err(CUDA_ERROR_INVALID_VALUE), "it has one node already");
        assert_eq!(give(outer, inner), Err(CUDA_ERROR_INVALID_VALUE), "it would lie within itself");
        assert_eq!(registry.destroy(inner), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(lock(&graphs[1]).check_not_moved(), Err(CUDA_ERROR_INVALID_VALUE));
        registry.set_work(node, Test::Child(registry.to_move(other).unwrap())).unwrap();
        assert!(registry.graph(inner).is_err(), "it went with what the node was");
        registry.destroy(outer).unwrap();
        assert!(registry.graph(other).is_err());
    }
}
