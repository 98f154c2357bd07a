//! `cuGraphExecUpdate`: replaces the work of an executable graph by the work of a similar graph.

use crate::{Graph, NodeId, Work, lock};
use driverapi::constants::{
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
    CU_GRAPH_EXEC_UPDATE_SUCCESS,
};
use driverapi::types::CUgraphExecUpdateResultInfo;
use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;

/// The reason why a graph cannot update an executable graph, with the fields of `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit {
    /// A `CUgraphExecUpdateResult`.
    pub result: u32,
    /// The node of the graph that does not match.
    pub node: Option<NodeId>,
    /// The source node of an edge that does not match.
    pub from: Option<NodeId>,
}

impl Misfit {
    /// Returns the structure for the program: the mismatch, or success if there is none.
    pub fn told(misfit: Option<Self>) -> CUgraphExecUpdateResultInfo {
        let handle = |node: Option<NodeId>| without_provenance_mut(node.unwrap_or(0));
        CUgraphExecUpdateResultInfo {
            result: misfit.map_or(CU_GRAPH_EXEC_UPDATE_SUCCESS, |misfit| misfit.result),
            errorNode: handle(misfit.and_then(|misfit| misfit.node)),
            errorFromNode: handle(misfit.and_then(|misfit| misfit.from)),
        }
    }
}

/// Replaces the work in an executable graph by the work of `graph`. The nodes of both are paired in the order of their
/// creation. For two works of one kind, `may_become` returns `Ok` if the second may replace the first, and otherwise
/// the result for the program. If one node does not match, nothing is changed.
///
/// # Errors
/// The first node that does not match.
pub fn update<W: Work>(
    executable: &mut Graph<W>,
    graph: &Graph<W>,
    may_become: &impl Fn(&W, &W) -> Result<(), u32>,
) -> Result<(), Misfit> {
    check(executable, graph, may_become)?;
    take_over(executable, graph);
    Ok(())
}

fn check<W: Work>(
    old: &Graph<W>,
    new: &Graph<W>,
    may_become: &impl Fn(&W, &W) -> Result<(), u32>,
) -> Result<(), Misfit> {
    let topology = |node, from| Misfit { result: CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, from };
    if old.len() != new.len() {
        return Err(topology(None, None));
    }
    let pairs: BTreeMap<NodeId, NodeId> = new.nodes().zip(old.nodes()).map(|((new, _), (old, _))| (new, old)).collect();
    for ((id, new), (_, old)) in new.nodes().zip(old.nodes()) {
        let misfit = |result| Misfit { result, node: Some(id), from: None };
        if new.work.kind() != old.work.kind() {
            return Err(misfit(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED));
        }
        if new.dependencies().len() != old.dependencies().len() {
            return Err(topology(Some(id), None));
        }
        for each in new.dependencies() {
            let known = |other: &crate::Dependency| Some(&other.on) == pairs.get(&each.on) && other.edge == each.edge;
            if !old.dependencies().iter().any(known) {
                return Err(topology(Some(id), Some(each.on)));
            }
        }
        match (old.work.child(), new.work.child()) {
            (Some(old), Some(new)) => check(&lock(old), &lock(new), may_become)?,
            _ => may_become(&old.work, &new.work).map_err(misfit)?,
        }
    }
    Ok(())
}

fn take_over<W: Work>(old: &mut Graph<W>, new: &Graph<W>) {
    let ids: Vec<NodeId> = old.nodes().map(|(id, _)| id).collect();
    for (id, (_, new)) in ids.into_iter().zip(new.nodes()) {
        let Ok(old) = old.node_mut(id) else { continue };
        match (old.work.child(), new.work.child()) {
            (Some(old), Some(new)) => take_over(&mut lock(old), &lock(new)),
            _ => old.work = new.work.clone(),
        }
    }
}
