//! The entry points for graphs, their edges and queries about them, and for user objects that graphs own.

use super::capturing::dependencies;
use super::entry::entry_points;
use super::handles::{handle, id, no_flags};
use crate::driver::{Driver, driver};
use crate::ffi::{self, In, Out, R, Text};
use crate::work::Work;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Edge, NodeId, SharedGraph, dot, lock};
use std::ffi::{c_uint, c_void};

pub fn graph(driver: &Driver, graph: CUgraph) -> R<SharedGraph<Work>> {
    driver.graphs.graph(id(graph))
}

/// Stores a list by CUDA's convention. If `out` is null, the call stores only the number of items. Otherwise it fills
/// `out`, and sets the elements behind the items to `rest`.
fn list<T>(items: &[T], out: Out<T>, count: Out<usize>, rest: impl Fn() -> T) -> R
where
    T: Copy,
{
    if !out.is_null() {
        let room = count.get()?;
        out.set_all(items.iter().copied().chain(std::iter::repeat_with(rest)).take(room))?;
        if room < items.len() {
            return Ok(());
        }
    }
    count.set(items.len())
}

/// Stores two lists of equal length, nodes and edge data. `edges` may be null if all edge data is 0.
fn edges_too(nodes: &[(NodeId, Edge)], out: Out<CUgraphNode>, edges: Out<CUgraphEdgeData>, count: Out<usize>) -> R {
    let plain = nodes.iter().all(|(_, edge)| *edge == Edge::default());
    if edges.is_null() && !out.is_null() && !plain {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    if !edges.is_null() {
        let room = count.get()?;
        let rest = std::iter::repeat(Edge::default());
        edges.set_all(nodes.iter().map(|(_, edge)| *edge).chain(rest).map(CUgraphEdgeData::from).take(room))?;
    }
    let handles: Vec<CUgraphNode> = nodes.iter().map(|(id, _)| handle(*id)).collect();
    list(&handles, out, count, || handle(0))
}

fn tell_edges(
    which: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> R {
    let all: Vec<_> = lock(&graph(driver()?, which)?).edges().collect();
    let sources: Vec<_> = all.iter().map(|(from, _)| (from.on, from.edge)).collect();
    let targets: Vec<CUgraphNode> = all.iter().map(|(_, to)| handle(*to)).collect();
    if !to.is_null() {
        to.set_all(targets.into_iter().chain(std::iter::repeat_with(|| handle(0))).take(count.get()?))?;
    }
    edges_too(&sources, from, data, count)
}

fn change_edges(
    which: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
    change: impl FnOnce(&mut graphs::Graph<Work>, &[(Dependency, NodeId)]) -> R,
) -> R {
    let graph = graph(driver()?, which)?;
    let from = dependencies(from, data, count)?;
    let to = if count == 0 { Vec::new() } else { to.list(count)? };
    let edges: Vec<_> = from.into_iter().zip(to.into_iter().map(id)).collect();
    change(&mut lock(&graph), &edges)
}

entry_points! {
    fn cuGraphCreate(out: Out<CUgraph>, flags: c_uint) {
        let driver = driver()?;
        no_flags(flags.into())?;
        let out = out.required()?;
        out.set(handle(driver.graphs.handle_of(&SharedGraph::default())))
    }

    fn cuGraphDestroy(which: CUgraph) {
        driver()?.graphs.destroy(id(which))
    }

    fn cuGraphClone(out: Out<CUgraph>, original: CUgraph) {
        let driver = driver()?;
        let (out, original) = (out.required()?, graph(driver, original)?);
        if lock(&original).uses_memory() || lock(&original).has_conditions() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let clone = driver.graphs.copy(&lock(&original));
        out.set(handle(driver.graphs.handle_of(&clone)))
    }

    fn cuGraphConditionalHandleCreate(
        made: Out<u64>, which: CUgraph, context: CUcontext, default: c_uint, flags: c_uint,
    ) {
        let driver = driver()?;
        let made = made.required()?;
        if flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = super::graph_nodes::context_of(driver, context)?;
        let default = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0).then_some(default);
        made.set(driver.create_condition(id(which), context, default)?)
    }

    fn cuGraphNodeFindInClone(out: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        let found = lock(&graph(driver()?, clone)?).clone_of(id(original))?;
        out.set(handle(found))
    }

    fn cuGraphGetNodes(which: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) {
        let nodes: Vec<CUgraphNode> = lock(&graph(driver()?, which)?).nodes().map(|(id, _)| handle(id)).collect();
        list(&nodes, out, count, || handle(0))
    }

    fn cuGraphGetRootNodes(which: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) {
        let nodes: Vec<CUgraphNode> = lock(&graph(driver()?, which)?).roots().map(handle).collect();
        list(&nodes, out, count, || handle(0))
    }

    fn cuGraphGetEdges(which: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) {
        tell_edges(which, from, to, Out::at(std::ptr::null_mut()), count)
    }

    fn cuGraphGetEdges_v2(
        which: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        tell_edges(which, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>) {
        tell_dependencies(node, out, Out::at(std::ptr::null_mut()), count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        tell_dependencies(node, out, data, count)
    }

    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>) {
        tell_dependents(node, out, Out::at(std::ptr::null_mut()), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        tell_dependents(node, out, data, count)
    }

    fn cuGraphAddDependencies(which: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(which, from, to, In::at(std::ptr::null()), count, |graph, edges| graph.connect(edges))
    }

    fn cuGraphAddDependencies_v2(
        which: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
    ) {
        change_edges(which, from, to, data, count, |graph, edges| graph.connect(edges))
    }

    fn cuGraphRemoveDependencies(which: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        change_edges(which, from, to, In::at(std::ptr::null()), count, |graph, edges| graph.disconnect(edges))
    }

    fn cuGraphRemoveDependencies_v2(
        which: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
    ) {
        change_edges(which, from, to, data, count, |graph, edges| graph.disconnect(edges))
    }

    fn cuGraphDebugDotPrint(which: CUgraph, path: Text, _flags: c_uint) {
        let graph = graph(driver()?, which)?;
        let text = dot(&lock(&graph), &|id, work| format!("{id:#x}\nnode of type {}", graphs::Work::kind(work)));
        std::fs::write(path.get()?, text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate(
        out: Out<CUuserObject>, data: *mut c_void, destroy: CUhostFn, references: c_uint, flags: c_uint,
    ) {
        let driver = driver()?;
        let out = out.required()?;
        let destroy = destroy.filter(|_| flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let data = data.expose_provenance();
        let destructor = move || ffi::call_back(destroy, data);
        out.set(handle(driver.graphs.create_object(Box::new(destructor), references)?))
    }

    fn cuUserObjectRetain(object: CUuserObject, count: c_uint) {
        driver()?.graphs.retain_object(id(object), count)
    }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) {
        driver()?.graphs.release_object(id(object), count)
    }

    fn cuGraphRetainUserObject(which: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let driver = driver()?;
        let graph = graph(driver, which)?;
        if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.graphs.hold_object(&graph, id(object), count, flags != 0)
    }

    fn cuGraphReleaseUserObject(which: CUgraph, object: CUuserObject, count: c_uint) {
        let driver = driver()?;
        driver.graphs.let_object_go(&graph(driver, which)?, id(object), count)
    }

    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: Out<u64>) {
        let driver = driver()?;
        driver.device(device)?;
        let state = driver.graphs.memories.state(device);
        value.set(match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => state.used,
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => state.most_used,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => state.reserved,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => state.most_reserved,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    /// Resets a high-water mark to the present use. The only accepted value is 0.
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: In<u64>) {
        let driver = driver()?;
        driver.device(device)?;
        let used = match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => true,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => false,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if value.get()? != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.graphs.memories.reset_most(device, used);
        Ok(())
    }

    /// The memory of a graph is freed together with the graph, so there is nothing to trim.
    fn cuDeviceGraphMemTrim(device: CUdevice) {
        driver()?.device(device).map(drop)
    }
}

fn tell_dependencies(node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>) -> R {
    let graph = driver()?.graphs.graph_of(id(node))?;
    let nodes: Vec<_> = lock(&graph).node(id(node))?.dependencies().iter().map(|each| (each.on, each.edge)).collect();
    edges_too(&nodes, out, data, count)
}

fn tell_dependents(node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>) -> R {
    let nodes: Vec<_> = lock(&driver()?.graphs.graph_of(id(node))?).dependents(id(node)).collect();
    edges_too(&nodes, out, data, count)
}
