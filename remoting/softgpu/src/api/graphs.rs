//! Graphs: nodes, edges and executables.

use super::capturing::{dependencies, edge_data};
use super::copying::volume;
use super::{entry_points, handle, id, no_flags, stream_entry_points};
use crate::arena::Pattern;
use crate::context::Context;
use crate::copy::Fill;
use crate::driver::{Driver, current, driver};
use crate::ffi::{In, Out, R};
use crate::launch::{Launch, Shape, arguments};
use crate::work::{Executable, HostCall, Work};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Edge, NodeId, SharedGraph, lock};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

fn graph(driver: &Driver, graph: CUgraph) -> R<SharedGraph<Work>> {
    driver.graphs.graph(id(graph))
}

fn add(out: Out<CUgraphNode>, to: CUgraph, after: &[Dependency], work: impl FnOnce(&'static Driver) -> R<Work>) -> R {
    let driver = driver()?;
    let (out, graph) = (out.required()?, graph(driver, to)?);
    out.set(handle(driver.graphs.add(&graph, work(driver)?, after)?))
}

fn plain(nodes: In<CUgraphNode>, count: usize) -> R<Vec<Dependency>> {
    dependencies(nodes, In::at(std::ptr::null()), count)
}

fn context_of(driver: &Driver, context: CUcontext) -> R<Arc<Context>> {
    if context.is_null() { current() } else { driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT) }
}

fn launch_work(driver: &'static Driver, params: In<CUDA_KERNEL_NODE_PARAMS>) -> R<Work> {
    let p = params.get()?;
    let context = context_of(driver, p.ctx)?;
    let which = if p.func.is_null() { p.kern } else { p.func };
    let function = driver.function_or_kernel(id(which), &context)?;
    let shape = Shape {
        grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
        block: [p.blockDimX, p.blockDimY, p.blockDimZ],
        dynamic_shared: p.sharedMemBytes,
        cluster: None,
        cooperative: false,
    };
    let launch = Launch::new(driver, &function, shape, arguments(p.kernelParams, p.extra), &context)?;
    Ok(Work::Launch(Arc::new(launch)))
}

fn fill_work(params: In<CUDA_MEMSET_NODE_PARAMS>) -> R<Work> {
    let p = params.get()?;
    let pattern = match p.elementSize {
        1 => Pattern::Byte(p.value as u8),
        2 => Pattern::Half(p.value as u16),
        4 => Pattern::Word(p.value),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let (address, pitch, width, height) = (p.dst, p.pitch as u64, p.width as u64, p.height as u64);
    driver()?.check_fill(Fill { address, pitch, pattern, width, height, forgets: false }).map(Work::Fill)
}

fn copy_work(params: In<CUDA_MEMCPY3D>) -> R<Work> {
    let copy = volume(params)?;
    Ok(Work::Copy { copy, forgets: driver()?.check_copy(&copy)? })
}

fn host_work(params: In<CUDA_HOST_NODE_PARAMS>) -> R<Work> {
    let CUDA_HOST_NODE_PARAMS { fn_: function, userData } = params.get()?;
    function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Work::Host(HostCall { function, data: userData.expose_provenance() }))
}

/// Answers a list by CUDA's rule: without room the number is told; with room it is filled, the rest with zeros.
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

/// Two lists of a length, one of them edge data that may be left out where all is 0.
fn edges_too(nodes: &[(NodeId, Edge)], out: Out<CUgraphNode>, edges: Out<CUgraphEdgeData>, count: Out<usize>) -> R {
    let plain = nodes.iter().all(|(_, edge)| *edge == Edge::default());
    if edges.is_null() && !out.is_null() && !plain {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    if !edges.is_null() {
        let room = count.get()?;
        edges.set_all(nodes.iter().map(|(_, edge)| edge_data(*edge)).take(room))?;
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
        to.set_all(targets.into_iter().take(count.get()?))?;
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

fn instantiate(out: Out<CUgraphExec>, which: CUgraph, flags: u64) -> R {
    let driver = driver()?;
    let out = out.required()?;
    let executable = Executable::new(driver, &lock(&graph(driver, which)?), flags)?;
    let number = executable.id;
    driver.executables.insert(number, Arc::new(executable));
    out.set(handle(number))
}

fn executable(driver: &Driver, which: CUgraphExec) -> R<Arc<Executable>> {
    driver.executables.get(id(which)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Changes what a node does; it stays of its kind.
fn set_work(graph: &SharedGraph<Work>, node: NodeId, work: Work) -> R {
    let mut graph = lock(graph);
    let node = graph.node_mut(node)?;
    if std::mem::discriminant(&node.work) != std::mem::discriminant(&work) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    node.work = work;
    Ok(())
}

fn set_in_graph(node: CUgraphNode, work: Work) -> R {
    set_work(&driver()?.graphs.graph_of(id(node))?, id(node), work)
}

/// Changes the copy of a node in an executable, named by the graph's own node.
fn set_in_executable(which: CUgraphExec, node: CUgraphNode, work: Work) -> R {
    let executable = executable(driver()?, which)?;
    let copy = lock(&executable.graph).clone_of(id(node))?;
    set_work(&executable.graph, copy, work)
}

fn node_type(work: &Work) -> c_uint {
    match work {
        Work::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
        Work::Copy { .. } => CU_GRAPH_NODE_TYPE_MEMCPY,
        Work::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
        Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
        Work::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
        Work::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
        Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    }
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
        let clone = driver.graphs.copy(&lock(&original));
        out.set(handle(driver.graphs.handle_of(&clone)))
    }

    fn cuGraphNodeFindInClone(out: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        let found = lock(&graph(driver()?, clone)?).clone_of(id(original))?;
        out.set(handle(found))
    }

    fn cuGraphAddKernelNode_v2(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        add(out, to, &plain(after, count)?, |driver| launch_work(driver, params))
    }

    fn cuGraphAddMemcpyNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMCPY3D>,
        _context: CUcontext,
    ) {
        add(out, to, &plain(after, count)?, |_| copy_work(params))
    }

    fn cuGraphAddMemsetNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMSET_NODE_PARAMS>,
        _context: CUcontext,
    ) {
        add(out, to, &plain(after, count)?, |_| fill_work(params))
    }

    fn cuGraphAddHostNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_HOST_NODE_PARAMS>,
    ) {
        add(out, to, &plain(after, count)?, |_| host_work(params))
    }

    fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize) {
        add(out, to, &plain(after, count)?, |_| Ok(Work::Empty))
    }

    /// The child is copied.
    fn cuGraphAddChildGraphNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, child: CUgraph,
    ) {
        add(out, to, &plain(after, count)?, |driver| {
            Ok(Work::Child(driver.graphs.copy(&lock(&graph(driver, child)?))))
        })
    }

    fn cuGraphAddEventRecordNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, to, &plain(after, count)?, |_| super::streams::event(event).map(Work::Record))
    }

    fn cuGraphAddEventWaitNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, to, &plain(after, count)?, |_| super::streams::event(event).map(Work::Wait))
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        driver()?.graphs.remove(id(node))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, out: Out<c_uint>) {
        out.set(node_type(&driver()?.graphs.work_of(id(node))?))
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: Out<CUgraph>) {
        let driver = driver()?;
        let Work::Child(child) = driver.graphs.work_of(id(node))? else { return Err(CUDA_ERROR_INVALID_VALUE) };
        out.set(handle(driver.graphs.handle_of(&child)))
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

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        set_in_graph(node, launch_work(driver()?, params)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMCPY3D>) {
        set_in_graph(node, copy_work(params)?)
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>) {
        set_in_graph(node, fill_work(params)?)
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        set_in_graph(node, host_work(params)?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        set_in_executable(which, node, launch_work(driver()?, params)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMCPY3D>, _context: CUcontext,
    ) {
        set_in_executable(which, node, copy_work(params)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>, _context: CUcontext,
    ) {
        set_in_executable(which, node, fill_work(params)?)
    }

    fn cuGraphExecHostNodeSetParams(which: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        set_in_executable(which, node, host_work(params)?)
    }

    /// The forms before CUDA 12 told which node was at fault; none is.
    fn cuGraphInstantiate | cuGraphInstantiate_v2(
        out: Out<CUgraphExec>, which: CUgraph, _node: Out<CUgraphNode>, _log: Out<std::ffi::c_char>, _size: usize,
    ) {
        instantiate(out, which, 0)
    }

    fn cuGraphInstantiateWithFlags(out: Out<CUgraphExec>, which: CUgraph, flags: c_ulonglong) {
        instantiate(out, which, flags)
    }

    fn cuGraphExecGetFlags(which: CUgraphExec, out: Out<u64>) {
        out.set(executable(driver()?, which)?.flags)
    }

    fn cuGraphExecDestroy(which: CUgraphExec) {
        let driver = driver()?;
        let executable = driver.executables.remove(id(which)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        driver.graphs.forget_nodes(&executable.graph);
        Ok(())
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

stream_entry_points! { default;
    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz(
        out: Out<CUgraphExec>, which: CUgraph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        let given = params.get()?;
        let done = instantiate(out, which, given.flags);
        let result_out = if done.is_ok() { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_ERROR };
        params.set(CUDA_GRAPH_INSTANTIATE_PARAMS { result_out, hErrNode_out: handle(0), ..given })?;
        default.resolve(given.hUploadStream)?;
        done
    }

    fn cuGraphUpload / cuGraphUpload_ptsz(which: CUgraphExec, stream: CUstream) {
        executable(driver()?, which)?;
        default.resolve(stream).map(drop)
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz(which: CUgraphExec, stream: CUstream) {
        let driver = driver()?;
        executable(driver, which)?.launch(driver, &default.resolve(stream)?)
    }
}
