//! The entry points for graphs: their edges, queries, and objects that are destroyed with a graph.

use super::capture::dependencies;
use super::graph_nodes::context_of;
use crate::Code;
use crate::boundary::{input, inputs, write};
use crate::devices;
use crate::exports;
use crate::graphs::conditions;
use crate::graphs::graph::{GRAPHS, Work};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Edge, Graph, NodeId, SharedGraph, dot, lock};
use protocol::LaunchShape;
use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};

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
        if lock(&original).uses_memory() || lock(&original).has_conditions() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let copied = GRAPHS.copy(&lock(&original));
        write(clone, without_provenance_mut(GRAPHS.handle_of(&copied)))
    }

    fn cuGraphConditionalHandleCreate(
        made: *mut u64,
        graph: CUgraph,
        context: CUcontext,
        default: c_uint,
        flags: c_uint,
    ) {
        if made.is_null() || flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let default = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0).then_some(default);
        write(made, conditions::create(graph.addr(), &*context_of(context)?, default)?)
    }

    fn cuGraphNodeFindInClone(node: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) {
        let found = lock(&GRAPHS.graph(clone.addr())?).clone_of(original.addr())?;
        write(node, without_provenance_mut(found))
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


    fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint) {
        let graph = GRAPHS.graph(graph.addr())?;
        if path.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let path = OsStr::from_bytes(CStr::from_ptr(path).to_bytes());
        let text = dot(&lock(&graph), &label);
        std::fs::write(path, text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate(
        object: *mut CUuserObject,
        data: *mut c_void,
        destroy: CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) {
        let destroy = destroy.filter(|_| flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC && !object.is_null());
        let (destroy, data) = (destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?, data.expose_provenance());
        // SAFETY: the program gave this function to be called with this argument.
        let destructor = move || unsafe { destroy(with_exposed_provenance_mut(data)) };
        write(object, without_provenance_mut(GRAPHS.create_object(Box::new(destructor), references)?))
    }

    fn cuUserObjectRetain(object: CUuserObject, count: c_uint) { GRAPHS.retain_object(object.addr(), count) }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) { GRAPHS.release_object(object.addr(), count) }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let graph = GRAPHS.graph(graph.addr())?;
        if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        GRAPHS.hold_object(&graph, object.addr(), count, flags != 0)
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) {
        GRAPHS.let_object_go(&GRAPHS.graph(graph.addr())?, object.addr(), count)
    }

    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: *mut c_void) {
        let state = GRAPHS.memories.state(devices::get(device)?.ordinal);
        let bytes = match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => state.used,
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => state.most_used,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => state.reserved,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => state.most_reserved,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        write(value.cast(), bytes)
    }

    /// Resets a peak value. Only 0 is accepted, and it sets the peak to the present use.
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: *mut c_void) {
        let ordinal = devices::get(device)?.ordinal;
        let used = match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => true,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => false,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if input(value.cast::<u64>().cast_const())? != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        GRAPHS.memories.reset_most(ordinal, used);
        Ok(())
    }

    /// Returns success without effect, because memory of graphs is freed with the graphs.
    fn cuDeviceGraphMemTrim(device: CUdevice) { devices::get(device).map(drop) }
}

/// Returns the text that `cuGraphDebugDotPrint` shows for a node.
fn label(id: NodeId, work: &Work) -> String {
    let what = match work {
        Work::Launch(prepared) => {
            let name = prepared.function.c_name.to_string_lossy();
            let LaunchShape { grid, block, shared, .. } = &prepared.shape;
            format!("KERNEL\n{name}\ngrid {grid:?} block {block:?} shared {shared}")
        }
        Work::Copy(copying) => {
            let (to, from) = (copying.to.0.address, copying.from.0.address);
            format!("MEMCPY\n{from:#x} to {to:#x}\n{:?}", copying.shape)
        }
        Work::Fill(fill) => {
            format!("MEMSET\n{:#x}\n{} of {} by {}", fill.dst, fill.elementSize, fill.width, fill.height)
        }
        Work::Host(_) => "HOST".to_owned(),
        Work::Child(_) => "GRAPH".to_owned(),
        Work::Empty => "EMPTY".to_owned(),
        Work::Record(_) => "EVENT_RECORD".to_owned(),
        Work::Wait(_) => "EVENT_WAIT".to_owned(),
        Work::Allocate(memory) => format!("MEM_ALLOC\n{:#x}\n{} bytes", memory.address, memory.size),
        Work::Free(memory) => format!("MEM_FREE\n{:#x}", memory.address),
        Work::Conditional(conditional) => format!("CONDITIONAL\n{:#x}", conditional.condition.handle),
    };
    format!("{id:#x}\n{what}")
}

fn waited_for(node: CUgraphNode) -> Result<Vec<(NodeId, Edge)>, Code> {
    let graph = GRAPHS.graph_of(node.addr())?;
    let graph = lock(&graph);
    Ok(graph.node(node.addr())?.dependencies().iter().map(|each| (each.on, each.edge)).collect())
}

fn waiting(node: CUgraphNode) -> Result<Vec<(NodeId, Edge)>, Code> {
    Ok(lock(&GRAPHS.graph_of(node.addr())?).dependents(node.addr()).collect())
}

/// Stores a list by CUDA's rules. If the program passes no list, stores only the length; otherwise fills the list and
/// sets the rest to zeros. The edge data may be omitted if all of it is 0.
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
                write(data.add(i), edge.into())?;
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
