//! The entry points that instantiate, launch and update executable graphs.

use super::entry::{entry_points, stream_entry_points};
use super::graph_nodes::{
    changed_work, child_of, copy_work, fill_work, host_work, launch_work, record_work, wait_work,
};
use super::graphs::graph;
use super::handles::{handle, id};
use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, R};
use crate::work::{Executable, Work};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Misfit, Node, lock, update};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

fn instantiate(out: Out<CUgraphExec>, which: CUgraph, flags: u64) -> R {
    let driver = driver()?;
    let out = out.required()?;
    let executable = Executable::new(&driver.graphs, &lock(&graph(driver, which)?), flags)?;
    let number = executable.id;
    driver.executables.insert(number, Arc::new(executable));
    out.set(handle(number))
}

fn executable(driver: &Driver, which: CUgraphExec) -> R<Arc<Executable>> {
    driver.executables.get(id(which)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Changes a node in an executable graph. `node` is the corresponding node of the original graph or of one of its child
/// graphs.
fn change<T>(which: CUgraphExec, node: CUgraphNode, act: impl FnOnce(&mut Node<Work>) -> R<T>) -> R<T> {
    let executable = executable(driver()?, which)?;
    let mut graph = lock(&executable.graph);
    graph.with_clone(id(node), act)
}

fn set(which: CUgraphExec, node: CUgraphNode, work: Work) -> R {
    change(which, node, |node| {
        may_become(&node.work, &work).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        node.set_work(work).map(drop)
    })
}

/// Updates a child graph node of an executable. `child` must be a graph with the same nodes and edges.
fn set_child(which: CUgraphExec, node: CUgraphNode, child: CUgraph) -> R {
    let child = graph(driver()?, child)?;
    change(which, node, |node| {
        let Work::Child(copy) = &node.work else { return Err(CUDA_ERROR_INVALID_VALUE) };
        update(&mut lock(copy), &lock(&child), &may_become).map_err(|_| CUDA_ERROR_INVALID_VALUE)
    })
}

/// Updates an executable to match a graph. The result names the first difference that the executable cannot take over.
fn take_over(which: CUgraphExec, from: CUgraph) -> R<CUgraphExecUpdateResultInfo> {
    let driver = driver()?;
    let (executable, from) = (executable(driver, which)?, graph(driver, from)?);
    lock(&from).check_not_moved()?;
    Ok(Misfit::told(update(&mut lock(&executable.graph), &lock(&from), &may_become).err()))
}

/// Checks whether a node's work can be replaced by `new`. The error is a `CUgraphExecUpdateResult`.
fn may_become(old: &Work, new: &Work) -> Result<(), u32> {
    match (old, new) {
        (Work::Launch(old), Work::Launch(new)) if old.context().id != new.context().id => {
            Err(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE)
        }
        (Work::Allocate(old), Work::Allocate(new)) | (Work::Free(old), Work::Free(new))
            if old.address != new.address =>
        {
            Err(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        // The executable owns the graphs that a conditional node chooses from.
        (Work::Conditional(_), _) => Err(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

entry_points! {
    fn cuGraphExecKernelNodeSetParams(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        set(which, node, launch_work(params.get()?.into())?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        set(which, node, launch_work(params.get()?)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMCPY3D>, _context: CUcontext,
    ) {
        set(which, node, copy_work(params.get()?)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        which: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>, _context: CUcontext,
    ) {
        set(which, node, fill_work(params.get()?)?)
    }

    fn cuGraphExecHostNodeSetParams(which: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        set(which, node, host_work(params.get()?)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(which: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        set_child(which, node, child)
    }

    fn cuGraphExecEventRecordNodeSetEvent(which: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(which, node, record_work(event)?)
    }

    fn cuGraphExecEventWaitNodeSetEvent(which: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(which, node, wait_work(event)?)
    }

    fn cuGraphExecNodeSetParams(which: CUgraphExec, node: CUgraphNode, params: In<CUgraphNodeParams>) {
        let params = params.get()?;
        match child_of(&params) {
            Some(child) => set_child(which, node, child),
            None => set(which, node, changed_work(&params)?),
        }
    }

    fn cuGraphNodeSetEnabled(which: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        change(which, node, |node| {
            if !matches!(node.work, Work::Launch(_) | Work::Copy { .. } | Work::Fill(_)) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            node.enabled = enabled != 0;
            Ok(())
        })
    }

    fn cuGraphNodeGetEnabled(which: CUgraphExec, node: CUgraphNode, enabled: Out<c_uint>) {
        enabled.set(change(which, node, |node| Ok(node.enabled.into()))?)
    }

    fn cuGraphExecUpdate(which: CUgraphExec, from: CUgraph, node: Out<CUgraphNode>, result: Out<c_uint>) {
        let told = take_over(which, from)?;
        node.set(told.errorNode)?;
        result.set(told.result)?;
        told.answer()
    }

    fn cuGraphExecUpdate_v2(which: CUgraphExec, from: CUgraph, info: Out<CUgraphExecUpdateResultInfo>) {
        let told = take_over(which, from)?;
        info.set(told)?;
        told.answer()
    }

    /// The forms before CUDA 12 also return the node that caused an error. This driver never names one.
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
        executable.wait_before_release();
        Ok(())
    }
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
        executable(driver, which)?.launch(&driver.graphs, &default.resolve(stream)?, driver.start)
    }
}
