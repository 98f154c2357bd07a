//! Graphs: nodes, edges and executables.

use super::capture::{dependencies, edge_data};
use super::copy::describe_3d;
use super::launch::prepare;
use crate::call::{Code, input, inputs, write};
use crate::context::{self, Live};
use crate::graph::{self, Copying, GRAPHS, HostCall, Work};
use crate::{copy, event, exports, fill, stream, stream_exports};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Edge, Graph, NodeId, SharedGraph, lock};
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Arc;

exports! {
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) {
        if flags != 0 || graph.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(graph, without_provenance_mut(GRAPHS.handle_of(&SharedGraph::default())))
    }

    fn cuGraphDestroy(graph: CUgraph) { GRAPHS.destroy(graph.addr()) }

    fn cuGraphClone(clone: *mut CUgraph, original: CUgraph) {
        let original = GRAPHS.graph(original.addr())?;
        if clone.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let copied = GRAPHS.copy(&lock(&original));
        write(clone, without_provenance_mut(GRAPHS.handle_of(&copied)))
    }

    fn cuGraphNodeFindInClone(node: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) {
        let found = lock(&GRAPHS.graph(clone.addr())?).clone_of(original.addr())?;
        write(node, without_provenance_mut(found))
    }

    fn cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || launch_work(params))
    }

    fn cuGraphAddMemcpyNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_MEMCPY3D_PEER,
        context: CUcontext,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || copy_work(params))
    }

    fn cuGraphAddMemsetNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || fill_work(params, context))
    }

    fn cuGraphAddHostNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_HOST_NODE_PARAMS,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || host_work(params))
    }

    fn cuGraphAddEmptyNode(node: *mut CUgraphNode, graph: CUgraph, after: *const CUgraphNode, count: usize) {
        add(node, graph, &dependencies(after, null(), count)?, || Ok(Work::Empty))
    }

    fn cuGraphAddChildGraphNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        child: CUgraph,
    ) {
        let copied = || Ok(Work::Child(GRAPHS.copy(&lock(&GRAPHS.graph(child.addr())?))));
        add(node, graph, &dependencies(after, null(), count)?, copied)
    }

    fn cuGraphAddEventRecordNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || event::get(event).map(Work::Record))
    }

    fn cuGraphAddEventWaitNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        event: CUevent,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || event::get(event).map(Work::Wait))
    }

    fn cuGraphDestroyNode(node: CUgraphNode) { GRAPHS.remove(node.addr()) }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_uint) {
        write(kind, node_type(&GRAPHS.work_of(node.addr())?))
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph) {
        let Work::Child(child) = GRAPHS.work_of(node.addr())? else { return Err(CUDA_ERROR_INVALID_VALUE) };
        write(graph, without_provenance_mut(GRAPHS.handle_of(&child)))
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let all: Vec<_> = lock(&GRAPHS.graph(graph.addr())?).nodes().map(|(id, _)| (id, Edge::default())).collect();
        tell_nodes(&all, nodes, null_mut(), count)
    }

    fn cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let all: Vec<_> = lock(&GRAPHS.graph(graph.addr())?).roots().map(|id| (id, Edge::default())).collect();
        tell_nodes(&all, nodes, null_mut(), count)
    }

    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) {
        tell_edges(graph, from, to, null_mut(), count)
    }

    fn cuGraphGetEdges_v2(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        tell_edges(graph, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        tell_nodes(&waited_for(node)?, nodes, null_mut(), count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        tell_nodes(&waited_for(node)?, nodes, data, count)
    }

    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) {
        tell_nodes(&waiting(node)?, nodes, null_mut(), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) {
        tell_nodes(&waiting(node)?, nodes, data, count)
    }

    fn cuGraphAddDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        change_edges(graph, from, to, null(), count, Graph::connect)
    }

    fn cuGraphAddDependencies_v2(
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) {
        change_edges(graph, from, to, data, count, Graph::connect)
    }

    fn cuGraphRemoveDependencies(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, count: usize) {
        change_edges(graph, from, to, null(), count, Graph::disconnect)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) {
        change_edges(graph, from, to, data, count, Graph::disconnect)
    }

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS) {
        set_work(&GRAPHS.graph_of(node.addr())?, node.addr(), launch_work(params)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMCPY3D_PEER) {
        set_work(&GRAPHS.graph_of(node.addr())?, node.addr(), copy_work(params)?)
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS) {
        set_work(&GRAPHS.graph_of(node.addr())?, node.addr(), fill_work(params, null_mut())?)
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS) {
        set_work(&GRAPHS.graph_of(node.addr())?, node.addr(), host_work(params)?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        set_in_executable(executable, node, launch_work(params)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_MEMCPY3D_PEER,
        context: CUcontext,
    ) {
        set_in_executable(executable, node, copy_work(params)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) {
        set_in_executable(executable, node, fill_work(params, context)?)
    }

    fn cuGraphExecHostNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_HOST_NODE_PARAMS,
    ) {
        set_in_executable(executable, node, host_work(params)?)
    }

    fn cuGraphInstantiate(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        log: *mut c_char,
        size: usize,
    ) {
        instantiate(executable, graph, 0)
    }

    fn cuGraphInstantiate_v2(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        node: *mut CUgraphNode,
        log: *mut c_char,
        size: usize,
    ) {
        instantiate(executable, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        instantiate(executable, graph, flags)
    }

    fn cuGraphExecGetFlags(executable: CUgraphExec, flags: *mut u64) {
        write(flags, graph::executable(executable.addr())?.flags)
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) { graph::destroy_executable(executable.addr()) }
}

stream_exports! {
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) |default| {
        let given = input(params.cast_const())?;
        stream::resolve(given.hUploadStream, default)?;
        let done = instantiate(executable, graph, given.flags);
        let result_out = if done.is_ok() { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_ERROR };
        write(params, CUDA_GRAPH_INSTANTIATE_PARAMS { result_out, hErrNode_out: null_mut(), ..given })?;
        done
    }

    fn cuGraphUpload | cuGraphUpload_ptsz(executable: CUgraphExec, stream: CUstream) |default| {
        graph::executable(executable.addr())?;
        stream::resolve(stream, default).map(drop)
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz(executable: CUgraphExec, stream: CUstream) |default| {
        let executable = graph::executable(executable.addr())?;
        executable.launch(&stream::resolve(stream, default)?)
    }
}

unsafe fn add(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: &[Dependency],
    work: impl FnOnce() -> Result<Work, Code>,
) -> Result<(), Code> {
    let graph = GRAPHS.graph(graph.addr())?;
    if node.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let added = GRAPHS.add(&graph, work()?, after)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(node, without_provenance_mut(added)) }
}

fn context_of(handle: CUcontext) -> Result<Arc<Live>, Code> {
    if handle.is_null() { context::current() } else { context::get(handle)?.live() }
}

unsafe fn launch_work(params: *const CUDA_KERNEL_NODE_PARAMS) -> Result<Work, Code> {
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        let params = input(params)?;
        Ok(Work::Launch(Arc::new(prepare(&context_of(params.ctx)?, &params)?)))
    }
}

unsafe fn copy_work(params: *const CUDA_MEMCPY3D_PEER) -> Result<Work, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let (to, from, shape) = describe_3d(&unsafe { input(params)? })?;
    if shape.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    copy::check(&*context::current()?, to, from, &shape)?;
    Ok(Work::Copy(Copying { to, from, shape }))
}

unsafe fn fill_work(params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Result<Work, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let params = unsafe { input(params)? };
    let size = u64::from(params.elementSize);
    let (width, height) = (params.width as u64 * size, params.height as u64);
    let to = copy::Side { address: params.dst, pitch: params.pitch as u64, slice: 0 };
    fill::find(&*context_of(context)?, to, copy::Shape { width, height, depth: 1 })?;
    let aligned = params.dst.is_multiple_of(size.max(1)) && (height < 2 || to.pitch.is_multiple_of(size.max(1)));
    if matches!(size, 1 | 2 | 4) && aligned { Ok(Work::Fill(params)) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

unsafe fn host_work(params: *const CUDA_HOST_NODE_PARAMS) -> Result<Work, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let CUDA_HOST_NODE_PARAMS { fn_: function, userData } = unsafe { input(params)? };
    function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Work::Host(HostCall { function, data: userData.expose_provenance() }))
}

unsafe fn instantiate(executable: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Result<(), Code> {
    let graph = GRAPHS.graph(graph.addr())?;
    if executable.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let made = graph::instantiate(&lock(&graph), flags)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(executable, without_provenance_mut(made.handle)) }
}

/// Changes what a node does; it stays of its kind.
fn set_work(graph: &SharedGraph<Work>, node: NodeId, work: Work) -> Result<(), Code> {
    let mut graph = lock(graph);
    let node = graph.node_mut(node)?;
    if std::mem::discriminant(&node.work) != std::mem::discriminant(&work) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    node.work = work;
    Ok(())
}

/// Changes the copy of a node in an executable, named by the graph's own node.
fn set_in_executable(executable: CUgraphExec, node: CUgraphNode, work: Work) -> Result<(), Code> {
    let executable = graph::executable(executable.addr())?;
    let copied = lock(&executable.graph).clone_of(node.addr())?;
    set_work(&executable.graph, copied, work)
}

fn node_type(work: &Work) -> c_uint {
    match work {
        Work::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
        Work::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
        Work::Fill(_) => CU_GRAPH_NODE_TYPE_MEMSET,
        Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
        Work::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
        Work::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
        Work::Wait(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Work::Record(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    }
}

fn waited_for(node: CUgraphNode) -> Result<Vec<(NodeId, Edge)>, Code> {
    let graph = GRAPHS.graph_of(node.addr())?;
    let graph = lock(&graph);
    Ok(graph.node(node.addr())?.dependencies().iter().map(|each| (each.on, each.edge)).collect())
}

fn waiting(node: CUgraphNode) -> Result<Vec<(NodeId, Edge)>, Code> {
    Ok(lock(&GRAPHS.graph_of(node.addr())?).dependents(node.addr()).collect())
}

/// Answers a list by CUDA's rule: without room the number is told; with room it is filled, the rest with zeros. Edge data
/// may be left out where all is 0.
unsafe fn tell_nodes(
    found: &[(NodeId, Edge)],
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<(), Code> {
    if nodes.is_null() {
        // SAFETY: as the caller of the exported function vouches.
        return unsafe { write(count, found.len()) };
    }
    if data.is_null() && found.iter().any(|(_, edge)| *edge != Edge::default()) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    // SAFETY: as the caller of the exported function vouches: the lists have as much room as the count says.
    unsafe {
        let room = input(count.cast_const())?;
        for i in 0..room {
            let (id, edge) = found.get(i).copied().unwrap_or_default();
            write(nodes.add(i), without_provenance_mut(id))?;
            if !data.is_null() {
                write(data.add(i), edge_data(edge))?;
            }
        }
        if room >= found.len() { write(count, found.len()) } else { Ok(()) }
    }
}

unsafe fn tell_edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Result<(), Code> {
    let all: Vec<_> = lock(&GRAPHS.graph(graph.addr())?).edges().collect();
    let sources: Vec<_> = all.iter().map(|(from, _)| (from.on, from.edge)).collect();
    let targets: Vec<_> = all.iter().map(|(_, to)| (*to, Edge::default())).collect();
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        if from.is_null() != to.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if !to.is_null() {
            let mut room = input(count.cast_const())?;
            tell_nodes(&targets, to, null_mut(), &raw mut room)?;
        }
        tell_nodes(&sources, from, data, count)
    }
}

unsafe fn change_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    change: impl FnOnce(&mut Graph<Work>, &[(Dependency, NodeId)]) -> Result<(), Code>,
) -> Result<(), Code> {
    let graph = GRAPHS.graph(graph.addr())?;
    // SAFETY: as the caller of the exported function vouches.
    let (from, to) = unsafe { (dependencies(from, data, count)?, inputs(to, count)?) };
    let edges: Vec<_> = from.into_iter().zip(to.into_iter().map(|node| node.addr())).collect();
    change(&mut lock(&graph), &edges)
}
