//! Converts a graph and the graphs inside it into one list of steps, in an order that its edges allow.

use crate::{Edge, Graph, NodeId, Result, Work, lock};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Step<W> {
    /// The work of the step. `None` if there is nothing to do: the node is disabled, or the step only joins edges.
    pub work: Option<W>,
    /// The earlier steps that this step waits for, by their index in the list, each with its edge. An edge is ordinary
    /// unless both of its steps have work.
    pub after: Vec<(usize, Edge)>,
}

/// Returns all work of a graph as a list. The steps of a child graph wait for the dependencies of its node. Nodes that
/// depend on that node wait for the end of the child graph.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a cycle.
pub fn steps<W: Work>(graph: &Graph<W>) -> Result<Vec<Step<W>>> {
    let mut steps = Vec::with_capacity(graph.len());
    append(graph, &[], &mut steps)?;
    Ok(steps)
}

/// Appends the steps of a graph. Its first steps wait for the steps in `before`. Returns the steps that no other step
/// of the graph waits for.
fn append<W: Work>(graph: &Graph<W>, before: &[usize], steps: &mut Vec<Step<W>>) -> Result<Vec<usize>> {
    let mut ends: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    let mut waited_for: Vec<bool> = Vec::new();
    let first = steps.len();
    for id in graph.order()? {
        let node = graph.node(id)?;
        let works = |step: usize| node.enabled && steps[step].work.is_some();
        let edge = |step, edge| (step, if works(step) { edge } else { Edge::default() });
        let dependencies = node.dependencies().iter();
        let mut after: Vec<_> =
            dependencies.flat_map(|each| ends[&each.on].iter().map(|&step| edge(step, each.edge))).collect();
        if after.is_empty() {
            after.extend(before.iter().map(|&step| (step, Edge::default())));
        }
        // Of several edges between two steps, keep the one that waits for the most.
        after.sort_unstable();
        after.dedup_by_key(|(step, _)| *step);
        let own = match node.work.child() {
            Some(child) if node.enabled && !lock(child).is_empty() => {
                let before: Vec<usize> = after.iter().map(|(step, _)| *step).collect();
                append(&lock(child), &before, steps)?
            }
            child => {
                let work = (node.enabled && child.is_none()).then(|| node.work.clone());
                steps.push(Step { work, after: after.clone() });
                vec![steps.len() - 1]
            }
        };
        ends.insert(id, own);
        waited_for.resize(steps.len() - first, false);
        // A wait for the end of the graph needs the whole step, even if another step waits for only a part of the step.
        let waits = |(step, edge): &&(usize, Edge)| *step >= first && edge.is_full();
        after.iter().filter(waits).for_each(|&(step, _)| waited_for[step - first] = true);
    }
    Ok(waited_for.iter().enumerate().filter(|(_, waited)| !**waited).map(|(place, _)| first + place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dependency, Memory, MemoryUse, SharedGraph};
    use driverapi::constants::{CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Debug)]
    enum Test {
        Does(&'static str),
        Child(SharedGraph<Test>),
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
    }

    fn places(after: &[(usize, Edge)]) -> Vec<usize> {
        after.iter().map(|(place, _)| *place).collect()
    }

    fn flat(graph: &Graph<Test>) -> Vec<(&'static str, Vec<usize>)> {
        let name = |step: Step<Test>| match step.work {
            Some(Test::Does(name)) => (name, places(&step.after)),
            _ => ("", places(&step.after)),
        };
        steps(graph).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn a_graph_inside_takes_its_nodes_place() {
        let mut child = Graph::default();
        child.add(11, Test::Does("x"), &[]).unwrap();
        child.add(12, Test::Does("y"), &[]).unwrap();
        child.add(13, Test::Does("z"), &[12.into()]).unwrap();
        let mut graph = Graph::default();
        graph.add(1, Test::Does("a"), &[]).unwrap();
        graph.add(2, Test::Child(Arc::new(Mutex::new(child))), &[1.into()]).unwrap();
        graph.add(3, Test::Does("b"), &[2.into()]).unwrap();
        graph.add(4, Test::Does("c"), &[1.into()]).unwrap();
        let expected =
            [("a", vec![]), ("x", vec![0]), ("y", vec![0]), ("z", vec![2]), ("b", vec![1, 3]), ("c", vec![0])];
        assert_eq!(flat(&graph), expected);
    }

    #[test]
    fn what_is_switched_off_keeps_the_order_of_its_neighbours() {
        let mut graph = Graph::default();
        graph.add(1, Test::Does("a"), &[]).unwrap();
        graph.add(2, Test::Does("b"), &[1.into()]).unwrap();
        graph.add(3, Test::Does("c"), &[2.into()]).unwrap();
        graph.node_mut(2).unwrap().enabled = false;
        assert_eq!(flat(&graph), [("a", vec![]), ("", vec![0]), ("c", vec![1])]);
        graph.connect(&[(3.into(), 1)]).unwrap();
        assert!(steps(&graph).is_err());
    }

    #[test]
    fn edges_are_kept_between_steps_that_do_something() {
        let programmatic = Dependency { on: 1, edge: Edge::PROGRAMMATIC };
        let mut graph = Graph::default();
        graph.add(1, Test::Does("a"), &[]).unwrap();
        graph.add(2, Test::Does("b"), &[programmatic]).unwrap();
        graph.add(3, Test::Does("c"), &[programmatic, 1.into()]).unwrap();
        let edges = |graph: &Graph<Test>| steps(graph).unwrap().into_iter().flat_map(|step| step.after).collect();
        let found: Vec<_> = edges(&graph);
        assert_eq!(found, [(0, Edge::PROGRAMMATIC), (0, Edge::default())], "the one that waits for the most");
        graph.node_mut(1).unwrap().enabled = false;
        let found: Vec<_> = edges(&graph);
        assert_eq!(found, [(0, Edge::default()), (0, Edge::default())]);
    }

    #[test]
    fn what_waits_for_a_graph_waits_for_all_of_each_step() {
        let mut child = Graph::default();
        child.add(11, Test::Does("x"), &[]).unwrap();
        child.add(12, Test::Does("y"), &[Dependency { on: 11, edge: Edge::PROGRAMMATIC }]).unwrap();
        let mut graph = Graph::default();
        graph.add(1, Test::Child(Arc::new(Mutex::new(child))), &[]).unwrap();
        graph.add(2, Test::Does("a"), &[1.into()]).unwrap();
        assert_eq!(flat(&graph), [("x", vec![]), ("y", vec![0]), ("a", vec![0, 1])]);
    }
}
