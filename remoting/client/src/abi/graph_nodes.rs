//! The entry points that add, read and change nodes of graphs.

use super::capture::dependencies;
use super::copy::{box_of, describe_3d};
use crate::Code;
use crate::boundary::{input, inputs, write};
use crate::copies::{copy, fill};
use crate::devices;
use crate::devices::context::{self, Live};
use crate::exports;
use crate::graphs::conditions;
use crate::graphs::graph::{self, GRAPHS, Work};
use crate::launch::{Prepared, prepare};
use crate::objects::event;
use crate::objects::host_function::HostCall;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, lock};
use protocol::LaunchAttribute;
use std::ffi::c_uint;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::Arc;

exports! {
    fn cuGraphAddKernelNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || launch_work(&input(params)?.into()))
    }

    fn cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || launch_work(&input(params)?))
    }

    fn cuGraphAddMemcpyNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_MEMCPY3D,
        context: CUcontext,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || copy_work(&input(params)?, context))
    }

    fn cuGraphAddMemsetNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || fill_work(input(params)?, context))
    }

    fn cuGraphAddHostNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *const CUDA_HOST_NODE_PARAMS,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || host_work(input(params)?))
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
        add(node, graph, &dependencies(after, null(), count)?, || copied_child(child))
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

    fn cuGraphAddMemAllocNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) {
        let given = input(params.cast_const())?;
        let memory = allocation(&given)?;
        add(node, graph, &dependencies(after, null(), count)?, || Ok(Work::Allocate(Arc::clone(&memory))))?;
        write(params, CUDA_MEM_ALLOC_NODE_PARAMS { dptr: memory.address, ..given })
    }

    fn cuGraphAddMemFreeNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        address: CUdeviceptr,
    ) {
        add(node, graph, &dependencies(after, null(), count)?, || free_work(address))
    }

    fn cuGraphAddNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) {
        add_any(node, graph, &dependencies(after, null(), count)?, params)
    }

    fn cuGraphAddNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) {
        add_any(node, graph, &dependencies(after, edges, count)?, params)
    }

    fn cuGraphAddNode_v3(
        node: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) {
        add_any(node, graph, &dependencies(after, edges, count)?, params)
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let graph = GRAPHS.graph_of(node.addr())?;
        if lock(&graph).uses_memory() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        GRAPHS.remove(node.addr())
    }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_uint) {
        write(kind, graphs::Work::kind(&GRAPHS.work_of(node.addr())?))
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph) {
        write(graph, describe(node, CU_GRAPH_NODE_TYPE_GRAPH)?.of.graph.graph)
    }

    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_KERNEL)?.of.kernel.v1)
    }

    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_KERNEL)?.of.kernel)
    }

    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMCPY3D) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_MEMCPY)?.of.memcpy.copyParams)
    }

    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_MEMSET)?.of.memset.memset)
    }

    fn cuGraphHostNodeGetParams(node: CUgraphNode, params: *mut CUDA_HOST_NODE_PARAMS) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_HOST)?.of.host)
    }

    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: *mut CUevent) {
        write(event, describe(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD)?.of.event)
    }

    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: *mut CUevent) {
        write(event, describe(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT)?.of.event)
    }

    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        write(params, describe(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC)?.of.alloc)
    }

    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: *mut CUdeviceptr) {
        write(address, describe(node, CU_GRAPH_NODE_TYPE_MEM_FREE)?.of.free)
    }

    fn cuGraphNodeGetParams(node: CUgraphNode, params: *mut CUgraphNodeParams) {
        write(params, params_of(&GRAPHS.work_of(node.addr())?))
    }

    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1) {
        set(node, launch_work(&input(params)?.into())?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS) {
        set(node, launch_work(&input(params)?)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMCPY3D) {
        set(node, copy_work(&input(params)?, null_mut())?)
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS) {
        set(node, fill_work(input(params)?, null_mut())?)
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS) {
        set(node, host_work(input(params)?)?)
    }

    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) {
        set(node, Work::Record(event::get(event)?))
    }

    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) { set(node, Work::Wait(event::get(event)?)) }

    fn cuGraphNodeSetParams(node: CUgraphNode, params: *mut CUgraphNodeParams) {
        set(node, changed_work(&input(params.cast_const())?)?)
    }

    fn cuGraphNodeSetParams_v2(node: CUgraphNode, params: *mut CUgraphNodeParams) {
        set(node, changed_work(&input(params.cast_const())?)?)
    }

    fn cuGraphKernelNodeGetAttribute(node: CUgraphNode, attribute: c_uint, value: *mut CUlaunchAttributeValue) {
        let prepared = kernel(node)?;
        let found = prepared.shape.attributes.iter().find(|each| each.id == attribute);
        let mut pad = [0; 64];
        for (bytes, word) in pad.chunks_exact_mut(8).zip(found.map_or([0; 8], |each| each.value)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        write(value, CUlaunchAttributeValue { pad })
    }

    fn cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: c_uint, value: *const CUlaunchAttributeValue) {
        let given = CUlaunchAttribute { id: attribute, pad: [0; 4], value: input(value)? };
        let Some(given) = super::launch::attribute(&given) else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let given = given?;
        let old = kernel(node)?;
        let others = old.shape.attributes.iter().filter(|each| each.id != attribute).cloned();
        set(node, Work::Launch(Arc::new(old.with_attributes(others.chain([given]).collect())?)))
    }

    fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode) {
        let attributes: Vec<LaunchAttribute> = kernel(from)?.shape.attributes.clone();
        set(to, Work::Launch(Arc::new(kernel(to)?.with_attributes(attributes)?)))
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

/// Adds a node of any kind. For an allocation, stores its address in the program's parameters.
unsafe fn add_any(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: &[Dependency],
    params: *mut CUgraphNodeParams,
) -> Result<(), Code> {
    // SAFETY: as the caller of the exported function vouches; the type says which member holds.
    unsafe {
        let mut given = input(params.cast_const())?;
        match given.type_ {
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                let memory = allocation(&given.of.alloc)?;
                add(node, graph, after, || Ok(Work::Allocate(Arc::clone(&memory))))?;
                given.of.alloc.dptr = memory.address;
                write(params, given)
            }
            CU_GRAPH_NODE_TYPE_MEM_FREE => add(node, graph, after, || free_work(given.of.free)),
            CU_GRAPH_NODE_TYPE_EMPTY => add(node, graph, after, || Ok(Work::Empty)),
            CU_GRAPH_NODE_TYPE_CONDITIONAL => {
                let CUDA_CONDITIONAL_NODE_PARAMS { handle, type_, size, .. } = given.of.conditional;
                let made = conditions::node(graph.addr(), handle, type_, size)?;
                given.of.conditional.phGraph_out = made.list.as_ptr().cast_mut().cast();
                add(node, graph, after, || Ok(Work::Conditional(Box::new(made))))?;
                write(params, given)
            }
            _ => add(node, graph, after, || changed_work(&given)),
        }
    }
}

pub fn context_of(handle: CUcontext) -> Result<Arc<Live>, Code> {
    if handle.is_null() { context::current() } else { context::get(handle)?.live() }
}

/// Converts a program's description of a kernel node.
///
/// # Errors
/// Those of a launch of the same kind.
///
/// # Safety
/// The parameters are as CUDA documents them for `cuLaunchKernel`.
pub unsafe fn launch_work(params: &CUDA_KERNEL_NODE_PARAMS) -> Result<Work, Code> {
    // SAFETY: as the caller vouches.
    unsafe { Ok(Work::Launch(Arc::new(prepare(&context_of(params.ctx)?, params)?))) }
}

/// Converts a program's description of a copy node.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for memory that is not of the declared kind, or an empty copy.
pub fn copy_work(params: &CUDA_MEMCPY3D, context: CUcontext) -> Result<Work, Code> {
    let copying = describe_3d(params)?;
    if copying.shape.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    copy::check(&*context_of(context)?, copying.to, copying.from, &copying.shape)?;
    Ok(Work::Copy(copying))
}

/// Converts a program's description of a fill node.
///
/// # Errors
/// Those of [`fill::find`].
pub fn fill_work(params: CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Result<Work, Code> {
    fill::find(&*context_of(context)?, &params)?;
    Ok(Work::Fill(params))
}

/// Converts a program's description of a host function node.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is no function.
pub fn host_work(params: CUDA_HOST_NODE_PARAMS) -> Result<Work, Code> {
    let CUDA_HOST_NODE_PARAMS { fn_: function, userData } = params;
    function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Work::Host(HostCall { function, data: userData.expose_provenance() }))
}

fn copied_child(child: CUgraph) -> Result<Work, Code> {
    let child = GRAPHS.graph(child.addr())?;
    let child = lock(&child);
    child.check_not_moved()?;
    let stays = child.uses_memory() || child.has_conditions();
    if stays { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(Work::Child(GRAPHS.embed(&child))) }
}

unsafe fn allocation(params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> Result<Arc<graphs::Memory>, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let readers = unsafe { inputs(params.accessDescs, params.accessDescCount)? };
    if !params.is_plain(&readers) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let live = context::of_device(devices::get(params.poolProps.location.id)?)?;
    graph::allocate(&live, params.bytesize as u64)
}

/// Returns the work of a node that frees memory.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for an address that no node allocates.
pub fn free_work(address: CUdeviceptr) -> Result<Work, Code> {
    GRAPHS.memories.get(address).map(Work::Free).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Converts the general form of node parameters to the node's new work.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for nodes that cannot be changed or are not supported.
///
/// # Safety
/// The parameters are as CUDA documents them for their type.
pub unsafe fn changed_work(params: &CUgraphNodeParams) -> Result<Work, Code> {
    // SAFETY: as the caller vouches; the type determines the member of the union.
    unsafe {
        match params.type_ {
            CU_GRAPH_NODE_TYPE_KERNEL => launch_work(&params.of.kernel),
            CU_GRAPH_NODE_TYPE_MEMCPY => copy_work(&params.of.memcpy.copyParams, params.of.memcpy.copyCtx),
            CU_GRAPH_NODE_TYPE_MEMSET => fill_work(params.of.memset.memset, params.of.memset.ctx),
            CU_GRAPH_NODE_TYPE_HOST => host_work(params.of.host),
            CU_GRAPH_NODE_TYPE_EVENT_RECORD => event::get(params.of.event).map(Work::Record),
            CU_GRAPH_NODE_TYPE_WAIT_EVENT => event::get(params.of.event).map(Work::Wait),
            CU_GRAPH_NODE_TYPE_GRAPH => match params.of.graph.ownership {
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => copied_child(params.of.graph.graph),
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => GRAPHS.to_move(params.of.graph.graph.addr()).map(Work::Child),
                _ => Err(CUDA_ERROR_INVALID_VALUE),
            },
            _ => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

/// Returns a node's parameters, if the node is of this kind.
fn describe(node: CUgraphNode, kind: c_uint) -> Result<CUgraphNodeParams, Code> {
    let work = GRAPHS.work_of(node.addr())?;
    if graphs::Work::kind(&work) == kind { Ok(params_of(&work)) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Returns a node's parameters. Their pointers are valid until the node's work changes.
fn params_of(work: &Work) -> CUgraphNodeParams {
    let mut of = CUgraphNodeParams_union { bytes: [0; 29] };
    match work {
        Work::Launch(prepared) => of.kernel = kernel_params(prepared),
        Work::Copy(copying) => of.memcpy.copyParams = box_of(copying),
        Work::Fill(fill) => of.memset.memset = *fill,
        Work::Host(call) => {
            of.host = CUDA_HOST_NODE_PARAMS { fn_: call.function, userData: with_exposed_provenance_mut(call.data) };
        }
        Work::Child(child) => {
            of.graph = CUDA_CHILD_GRAPH_NODE_PARAMS {
                graph: without_provenance_mut(GRAPHS.handle_of(child)),
                ownership: CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID,
            };
        }
        Work::Record(event) | Work::Wait(event) => of.event = without_provenance_mut(event.handle),
        Work::Allocate(memory) => {
            of.alloc = CUDA_MEM_ALLOC_NODE_PARAMS::of(memory.device, memory.size, memory.address);
        }
        Work::Free(memory) => of.free = memory.address,
        Work::Conditional(conditional) => {
            of.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                handle: conditional.condition.handle,
                type_: conditional.kind,
                size: conditional.bodies.len() as c_uint,
                phGraph_out: conditional.list.as_ptr().cast_mut().cast(),
                ctx: null_mut(),
            };
        }
        Work::Empty => (),
    }
    CUgraphNodeParams { type_: graphs::Work::kind(work), reserved0: [0; 3], of, reserved2: 0 }
}

fn kernel_params(prepared: &Prepared) -> CUDA_KERNEL_NODE_PARAMS {
    let (grid, block) = (prepared.shape.grid, prepared.shape.block);
    let v1 = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: without_provenance_mut(prepared.function.handle),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: prepared.shape.shared,
        kernelParams: prepared.pointers(),
        extra: null_mut(),
    };
    let ctx = without_provenance_mut(prepared.function.module.live.handle);
    CUDA_KERNEL_NODE_PARAMS { v1, kern: null_mut(), ctx }
}

fn kernel(node: CUgraphNode) -> Result<Arc<Prepared>, Code> {
    match GRAPHS.work_of(node.addr())? {
        Work::Launch(prepared) => Ok(prepared),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn set(node: CUgraphNode, work: Work) -> Result<(), Code> {
    GRAPHS.set_work(node.addr(), work)
}
