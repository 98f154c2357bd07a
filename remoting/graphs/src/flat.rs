//! A graph with the graphs inside it as one list, in an order that its edges allow.

use crate::{Graph, NodeId, Result, Work, lock};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Step<W> {
    /// `None` where nothing is to be done: a node that is switched off, or a place where edges meet.
    pub work: Option<W>,
    /// The earlier steps that this one waits for, by their places in the list.
    pub after: Vec<usize>,
}

/// All that a graph does. A graph inside it begins where its node does, and what waits for the node waits for its end.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a cycle.
pub fn steps<W: Work>(graph: &Graph<W>) -> Result<Vec<Step<W>>> {
    let mut steps = Vec::with_capacity(graph.len());
    append(graph, &[], &mut steps)?;
    Ok(steps)
}

/// Appends a graph whose first steps wait for `before`; gives the steps that nothing in it waits for.
fn append<W: Work>(graph: &Graph<W>, before: &[usize], steps: &mut Vec<Step<W>>) -> Result<Vec<usize>> {
    let mut ends: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    let mut waited_for: Vec<bool> = Vec::new();
    let first = steps.len();
    for id in graph.order()? {
        let node = graph.node(id)?;
        let mut after: Vec<usize> = node.dependencies().iter().flat_map(|each| ends[&each.on].clone()).collect();
        if after.is_empty() {
            after.extend(before);
        }
        after.sort_unstable();
        after.dedup();
        let own = match node.work.child() {
            Some(child) if node.enabled && !lock(child).is_empty() => append(&lock(child), &after, steps)?,
            child => {
                let work = (node.enabled && child.is_none()).then(|| node.work.clone());
                steps.push(Step { work, after: after.clone() });
                vec![steps.len() - 1]
            }
        };
        ends.insert(id, own);
        waited_for.resize(steps.len() - first, false);
        after.iter().filter(|&&step| step >= first).for_each(|&step| waited_for[step - first] = true);
    }
    Ok(waited_for.iter().enumerate().filter(|(_, waited)| !**waited).map(|(place, _)| first + place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, MemoryUse, SharedGraph};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Debug)]
    enum Test {
        Does(&'static str),
        Child(SharedGraph<Test>),
    }

    impl Work for Test {
        fn kind(&self) -> u32 {
            0
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

    fn flat(graph: &Graph<Test>) -> Vec<(&'static str, Vec<usize>)> {
        let name = |step: Step<Test>| match step.work {
            Some(Test::Does(name)) => (name, step.after),
            _ => ("", step.after),
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
}
