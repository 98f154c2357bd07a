//! The entry points that instantiate, launch and change executable graphs.

use super::graph_nodes::{changed_work, copy_work, fill_work, host_work, launch_work};
use crate::Code;
use crate::boundary::{input, write};
use crate::graphs::executable;
use crate::graphs::graph::{GRAPHS, Work};
use crate::objects::{event, stream};
use crate::{exports, stream_exports};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Misfit, Node, lock, update};
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::ptr::{null_mut, without_provenance_mut};

exports! {
    fn cuGraphExecKernelNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        set(executable, node, launch_work(&input(params)?.into())?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        set(executable, node, launch_work(&input(params)?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) {
        set(executable, node, copy_work(&input(params)?, context)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) {
        set(executable, node, fill_work(input(params)?, context)?)
    }

    fn cuGraphExecHostNodeSetParams(
        executable: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_HOST_NODE_PARAMS,
    ) {
        set(executable, node, host_work(input(params)?)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        set_child(executable, node, child)
    }

    fn cuGraphExecEventRecordNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(executable, node, Work::Record(event::get(event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(executable, node, Work::Wait(event::get(event)?))
    }

    fn cuGraphExecNodeSetParams(executable: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) {
        let params = input(params.cast_const())?;
        if params.type_ == CU_GRAPH_NODE_TYPE_GRAPH {
            return set_child(executable, node, params.of.graph.graph);
        }
        set(executable, node, changed_work(&params)?)
    }

    fn cuGraphNodeSetEnabled(executable: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        change(executable, node, |node| {
            if !matches!(node.work, Work::Launch(_) | Work::Copy(_) | Work::Fill(_)) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            node.enabled = enabled != 0;
            Ok(())
        })
    }

    fn cuGraphNodeGetEnabled(executable: CUgraphExec, node: CUgraphNode, enabled: *mut c_uint) {
        let executable = executable::get(executable.addr())?;
        let told = lock(&executable.graph).with_clone(node.addr(), |node| Ok(node.enabled))?;
        write(enabled, told.into())
    }

    fn cuGraphExecUpdate(
        executable: CUgraphExec,
        graph: CUgraph,
        error_node: *mut CUgraphNode,
        result: *mut c_uint,
    ) {
        let told = take_over(executable, graph)?;
        write(error_node, told.errorNode)?;
        write(result, told.result)?;
        told.answer()
    }

    fn cuGraphExecUpdate_v2(executable: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo) {
        let told = take_over(executable, graph)?;
        write(info, told)?;
        told.answer()
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
        write(flags, executable::get(executable.addr())?.flags)
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) { executable::destroy(executable.addr()) }
}

stream_exports! {
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) |default| {
        let given = input(params.cast_const())?;
        stream::find(given.hUploadStream, default)?;
        let done = instantiate(executable, graph, given.flags);
        let result_out = if done.is_ok() { CUDA_GRAPH_INSTANTIATE_SUCCESS } else { CUDA_GRAPH_INSTANTIATE_ERROR };
        write(params, CUDA_GRAPH_INSTANTIATE_PARAMS { result_out, hErrNode_out: null_mut(), ..given })?;
        done
    }

    fn cuGraphUpload | cuGraphUpload_ptsz(executable: CUgraphExec, stream: CUstream) |default| {
        executable::get(executable.addr())?;
        stream::find(stream, default).map(drop)
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz(executable: CUgraphExec, stream: CUstream) |default| {
        let executable = executable::get(executable.addr())?;
        executable.launch(&stream::resolve(stream, default)?)
    }
}

unsafe fn instantiate(executable: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Result<(), Code> {
    let graph = GRAPHS.graph(graph.addr())?;
    if executable.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let made = executable::instantiate(&lock(&graph), flags)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(executable, without_provenance_mut(made.handle)) }
}

/// Changes a node of an executable. `node` is the handle of the original node in the graph, or in a child graph.
fn change(
    executable: CUgraphExec,
    node: CUgraphNode,
    act: impl FnOnce(&mut Node<Work>) -> Result<(), Code>,
) -> Result<(), Code> {
    executable::get(executable.addr())?.change(|graph| graph.with_clone(node.addr(), act))
}

fn set(executable: CUgraphExec, node: CUgraphNode, work: Work) -> Result<(), Code> {
    change(executable, node, |node| {
        may_become(&node.work, &work).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        node.set_work(work).map(drop)
    })
}

/// Replaces the works of a child graph node of an executable with the works of a graph of the same shape.
fn set_child(executable: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Result<(), Code> {
    let child = GRAPHS.graph(child.addr())?;
    change(executable, node, |node| {
        let Work::Child(copy) = &node.work else { return Err(CUDA_ERROR_INVALID_VALUE) };
        update(&mut lock(copy), &lock(&child), &may_become).map_err(|_| CUDA_ERROR_INVALID_VALUE)
    })
}

/// Updates an executable with the works of a graph. Returns the reason if the graph does not fit.
fn take_over(executable: CUgraphExec, graph: CUgraph) -> Result<CUgraphExecUpdateResultInfo, Code> {
    let from = GRAPHS.graph(graph.addr())?;
    lock(&from).check_not_moved()?;
    executable::get(executable.addr())?.change(|graph| Ok(Misfit::told(update(graph, &lock(&from), &may_become).err())))
}

/// Checks that the work of a node in an executable may be replaced. The error is a graph update result.
fn may_become(old: &Work, new: &Work) -> Result<(), u32> {
    match (old, new) {
        (Work::Launch(old), Work::Launch(new)) if old.context() != new.context() => {
            Err(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE)
        }
        (Work::Allocate(old), Work::Allocate(new)) | (Work::Free(old), Work::Free(new))
            if old.address != new.address =>
        {
            Err(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        // The graphs that a conditional node selects from belong to the executable.
        (Work::Conditional(_), _) => Err(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}
