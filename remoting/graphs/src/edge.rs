//! Edges of a graph: the kind of wait (`CUgraphEdgeData`), and the node that is waited for.

use crate::Result;
use driverapi::constants::{
    CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_DEFAULT,
    CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::CUgraphEdgeData;

/// The program's handle of a node. It is unique in the process, and later nodes have larger handles.
pub type NodeId = usize;

/// The ports and the kind of an edge. All fields of an ordinary edge are 0. Of two edges between the same nodes, the
/// lesser one waits for more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Edge {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
}

impl Edge {
    /// An edge between two kernels: the second may begin when all blocks of the first have triggered it.
    pub const PROGRAMMATIC: Edge = Edge {
        from_port: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
        to_port: 0,
        kind: CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
    };

    /// Like [`Self::PROGRAMMATIC`], but each block triggers the second kernel when the block begins.
    pub const AT_BLOCK_START: Edge = Edge { from_port: CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER, ..Self::PROGRAMMATIC };

    /// An edge that waits until all blocks of a kernel have begun.
    pub const LAUNCH_ORDER: Edge = Edge { kind: CU_GRAPH_DEPENDENCY_TYPE_DEFAULT, ..Self::AT_BLOCK_START };

    /// Whether the edge waits until all work of the node is complete.
    pub fn is_full(self) -> bool {
        self.from_port == CU_GRAPH_KERNEL_NODE_PORT_DEFAULT
    }

    /// Returns the edge as it may lead to a node: an edge that only a kernel can have becomes an ordinary one if the
    /// node is not a `kernel`.
    #[must_use]
    pub fn to(self, kernel: bool) -> Edge {
        if kernel || self.kind == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT { self } else { Edge::default() }
    }

    /// Whether nodes of these kinds may have this edge. Only kernels have ports, and a programmatic edge needs two
    /// kernels.
    pub(crate) fn suits(self, from_kernel: bool, to_kernel: bool) -> bool {
        (self.is_full() || from_kernel) && self.to(to_kernel) == self
    }
}

impl TryFrom<&CUgraphEdgeData> for Edge {
    type Error = u32;

    /// Converts the program's structure into an edge.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for values that CUDA does not define.
    fn try_from(data: &CUgraphEdgeData) -> Result<Edge> {
        let edge = Edge { from_port: data.from_port, to_port: data.to_port, kind: data.type_ };
        let known = [Edge::default(), Edge::PROGRAMMATIC, Edge::AT_BLOCK_START, Edge::LAUNCH_ORDER].contains(&edge);
        if known && data.reserved == [0; 5] { Ok(edge) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

impl From<Edge> for CUgraphEdgeData {
    fn from(edge: Edge) -> Self {
        CUgraphEdgeData { from_port: edge.from_port, to_port: edge.to_port, type_: edge.kind, reserved: [0; 5] }
    }
}

/// A dependency: the node to wait for, and the edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dependency {
    pub on: NodeId,
    pub edge: Edge,
}

impl From<NodeId> for Dependency {
    fn from(on: NodeId) -> Self {
        Self { on, edge: Edge::default() }
    }
}

/// Returns a node's dependencies without duplicates. If the node is not a `kernel`, edges that need one become
/// ordinary.
pub(crate) fn distinct(dependencies: &[Dependency], kernel: bool) -> Vec<Dependency> {
    let mut found = Vec::with_capacity(dependencies.len());
    let edges = dependencies.iter().map(|each| Dependency { on: each.on, edge: each.edge.to(kernel) });
    edges.for_each(|each| merge(&mut found, &[each]));
    found
}

pub(crate) fn merge(into: &mut Vec<Dependency>, more: &[Dependency]) {
    for each in more {
        if !into.contains(each) {
            into.push(*each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cuda_defines_is_an_edge() {
        let read = |from_port, to_port, type_, last| {
            Edge::try_from(&CUgraphEdgeData { from_port, to_port, type_, reserved: [0, 0, 0, 0, last] })
        };
        assert_eq!(read(0, 0, 0, 0), Ok(Edge::default()));
        assert_eq!(read(1, 0, 1, 0), Ok(Edge::PROGRAMMATIC));
        assert_eq!(read(2, 0, 1, 0), Ok(Edge::AT_BLOCK_START));
        assert_eq!(read(2, 0, 0, 0), Ok(Edge::LAUNCH_ORDER));
        for (from_port, to_port, kind, last) in
            [(1, 0, 0, 0), (0, 0, 1, 0), (3, 0, 1, 0), (0, 1, 0, 0), (1, 0, 2, 0), (0, 0, 0, 1)]
        {
            let wrong = read(from_port, to_port, kind, last);
            assert_eq!(wrong, Err(CUDA_ERROR_INVALID_VALUE), "{from_port} {to_port} {kind} {last}");
        }
    }
}
