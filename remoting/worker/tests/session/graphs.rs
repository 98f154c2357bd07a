//! The edges of a graph that reach the driver.

use super::*;
use fake::REFUSED_PORT;
use protocol::{GraphBuild, GraphEdge, GraphLaunch, GraphNode, Writer};

const GRAPH: u64 = 70;
/// Marks of both ends, port and kind.
type Told = (u64, u64, u8, u8);

impl Test {
    /// Builds a graph of kernels, the first with mark 0, and launches it. Returns the edges that the driver has.
    fn edges_of(&mut self, nodes: &[&[GraphEdge]]) -> Vec<Told> {
        let node = |(mark, after): (usize, &&[GraphEdge])| {
            let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes: vec![] };
            let mut w = Writer::new();
            w.put(&Launch { module: MODULE, kernel: 0, shape }).raw(&(mark as u64).to_le_bytes());
            GraphNode { after: after.to_vec(), code: Launch::CODE, body: w.bytes }
        };
        let nodes = nodes.iter().enumerate().map(node).collect();
        let build = GraphBuild { graph: GRAPH, context: CONTEXT, flags: 0, nodes };
        assert_eq!(self.client.call(0, &build, &[]).0, 0);
        self.client.send(B, &GraphLaunch { graph: GRAPH }, &[]);
        assert_eq!(self.synchronize(B), 0);
        let mark = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let world = fake::world();
        let edges = &world.graphs[&world.launched_graph];
        edges.iter().map(|(from, to, port, kind)| (mark(from), mark(to), *port, *kind)).collect()
    }
}

fn edge(place: u32, from_port: u8, kind: u8) -> GraphEdge {
    GraphEdge { place, from_port, to_port: 0, kind }
}

#[test]
fn edges_reach_the_driver_as_they_are() {
    let mut t = start();
    let edges = t.edges_of(&[&[], &[edge(0, 1, 1)], &[edge(0, 2, 0), edge(1, 0, 0)]]);
    assert_eq!(edges, [(0, 1, 1, 1), (1, 2, 0, 0), (0, 2, 2, 0)]);
    assert_eq!(fake::world().graphs.len(), 1, "only the executable is kept");
}

#[test]
fn what_a_driver_refuses_is_an_ordinary_edge() {
    let mut t = start();
    let edges = t.edges_of(&[&[], &[edge(0, REFUSED_PORT, 1)], &[edge(1, 1, 1)]]);
    assert_eq!(edges, [(0, 1, 0, 0), (1, 2, 0, 0)]);
    assert_eq!(fake::world().graphs.len(), 1);
}

#[test]
fn an_edge_from_a_later_node_builds_nothing() {
    let mut t = start();
    let mut w = Writer::new();
    let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes: vec![] };
    w.put(&Launch { module: MODULE, kernel: 0, shape }).raw(&0u64.to_le_bytes());
    for wrong in [edge(0, 0, 0), edge(0, 1, 1), edge(7, 1, 1)] {
        let nodes = vec![GraphNode { after: vec![wrong], code: Launch::CODE, body: w.bytes.clone() }];
        let build = GraphBuild { graph: GRAPH, context: CONTEXT, flags: 0, nodes };
        assert_eq!(t.client.call(0, &build, &[]).0, 1);
    }
    assert!(fake::world().graphs.is_empty());
}
