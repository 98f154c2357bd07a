//! `cuGraphDebugDotPrint`: prints a graph in the language of Graphviz.

use crate::{Edge, Graph, NodeId, Work, lock};
use std::fmt::Write;

/// Returns the Graphviz text of a graph and of all graphs inside it. `describe` returns the label of a node, with `\n`
/// between its lines.
pub fn dot<W: Work>(graph: &Graph<W>, describe: &impl Fn(NodeId, &W) -> String) -> String {
    let mut text = "digraph graph_0 {\n".to_owned();
    write_graph(graph, describe, &mut text, &mut 0);
    text + "}\n"
}

fn write_graph<W: Work>(
    graph: &Graph<W>,
    describe: &impl Fn(NodeId, &W) -> String,
    text: &mut String,
    count: &mut u32,
) {
    *count += 1;
    // A write to a string does not fail.
    let _ = writeln!(text, "subgraph cluster_{count} {{\nlabel=\"graph {count}\";");
    for (id, node) in graph.nodes() {
        let label = describe(id, &node.work).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(text, "node_{id} [shape=\"box\", label=\"{label}\"];");
        if let Some(child) = node.work.child() {
            write_graph(&lock(child), describe, text, count);
        }
    }
    for (from, to) in graph.edges() {
        let kind = if from.edge == Edge::default() { "" } else { " [style=\"dashed\"]" };
        let _ = writeln!(text, "node_{} -> node_{to}{kind};", from.on);
    }
    text.push_str("}\n");
}
