//! `cuGraphExecUpdate`: an executable takes over the work of a similar graph's nodes.

use crate::{Graph, NodeId, Work, lock};
use driverapi::constants::{
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
    CU_GRAPH_EXEC_UPDATE_SUCCESS,
};
use driverapi::types::CUgraphExecUpdateResultInfo;
use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;

/// Why a graph does not fit an executable, as `CUgraphExecUpdateResultInfo` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit {
    /// A `CUgraphExecUpdateResult`.
    pub result: u32,
    /// The graph's node that does not fit.
    pub node: Option<NodeId>,
    /// The node from which an edge to it does not fit.
    pub from: Option<NodeId>,
}

impl Misfit {
    /// The answer to the program: the misfit, or that the graph fits.
    pub fn told(misfit: Option<Self>) -> CUgraphExecUpdateResultInfo {
        let handle = |node: Option<NodeId>| without_provenance_mut(node.unwrap_or(0));
        CUgraphExecUpdateResultInfo {
            result: misfit.map_or(CU_GRAPH_EXEC_UPDATE_SUCCESS, |misfit| misfit.result),
            errorNode: handle(misfit.and_then(|misfit| misfit.node)),
            errorFromNode: handle(misfit.and_then(|misfit| misfit.from)),
        }
    }
}

/// Gives an executable the work of a graph, whose nodes are paired with its own in the order in which they were made.
/// `may_become` says for two works of a kind whether one may replace the other, or the result if not. Nothing is
/// changed if anything does not fit.
///
/// # Errors
/// The first node that does not fit.
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
