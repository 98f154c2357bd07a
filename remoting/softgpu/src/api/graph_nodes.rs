//! The entry points that add, query and update nodes of graphs.

use super::capturing::dependencies;
use super::copying::{box_of, volume};
use super::entry::entry_points;
use super::graphs::graph;
use super::handles::{handle, id};
use crate::driver::{Driver, current, driver};
use crate::ffi::{In, Out, R};
use crate::kernels::launch::{Launch, Shape, arguments};
use crate::memory::allocations::{Allocation, Kind};
use crate::memory::arena::Pattern;
use crate::memory::copy::Fill;
use crate::process::device::Device;
use crate::streams::context::Context;
use crate::work::{HostCall, Work};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Dependency, Memory, lock};
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

fn add(out: Out<CUgraphNode>, to: CUgraph, after: &[Dependency], work: impl FnOnce(&'static Driver) -> R<Work>) -> R {
    let driver = driver()?;
    let (out, graph) = (out.required()?, graph(driver, to)?);
    out.set(handle(driver.graphs.add(&graph, work(driver)?, after)?))
}

fn plain(nodes: In<CUgraphNode>, count: usize) -> R<Vec<Dependency>> {
    dependencies(nodes, In::at(ptr::null()), count)
}

pub fn context_of(driver: &Driver, context: CUcontext) -> R<Arc<Context>> {
    if context.is_null() { current() } else { driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT) }
}

pub fn launch_work(p: CUDA_KERNEL_NODE_PARAMS) -> R<Work> {
    let driver = driver()?;
    let context = context_of(driver, p.ctx)?;
    let size = p.v1;
    let which = if size.func.is_null() { p.kern } else { size.func };
    let function = driver.function_or_kernel(id(which), &context)?;
    let shape = Shape {
        grid: [size.gridDimX, size.gridDimY, size.gridDimZ],
        block: [size.blockDimX, size.blockDimY, size.blockDimZ],
        dynamic_shared: size.sharedMemBytes,
        cluster: None,
        cooperative: false,
    };
    let launch = Launch::new(&driver.executor, &function, shape, arguments(size.kernelParams, size.extra), &context)?;
    Ok(Work::Launch(Arc::new(launch)))
}

pub fn fill_work(p: CUDA_MEMSET_NODE_PARAMS) -> R<Work> {
    let pattern = match p.elementSize {
        1 => Pattern::Byte(p.value as u8),
        2 => Pattern::Half(p.value as u16),
        4 => Pattern::Word(p.value),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let (address, pitch, width, height) = (p.dst, p.pitch as u64, p.width as u64, p.height as u64);
    driver()?.check_fill(Fill { address, pitch, pattern, width, height, forgets: false, clears: false }).map(Work::Fill)
}

pub fn copy_work(params: CUDA_MEMCPY3D) -> R<Work> {
    let copy = volume(params)?;
    Ok(Work::Copy { copy, forgets: driver()?.check_copy(&copy)? })
}

pub fn host_work(params: CUDA_HOST_NODE_PARAMS) -> R<Work> {
    let CUDA_HOST_NODE_PARAMS { fn_: function, userData } = params;
    function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Work::Host(HostCall { function, data: userData.expose_provenance() }))
}

pub fn record_work(event: CUevent) -> R<Work> {
    super::streams::event(event).map(Work::Record)
}

pub fn wait_work(event: CUevent) -> R<Work> {
    super::streams::event(event).map(Work::Wait)
}

fn copied_child(driver: &Driver, child: CUgraph) -> R<Work> {
    let child = graph(driver, child)?;
    let child = lock(&child);
    child.check_not_moved()?;
    let stays = child.uses_memory() || child.has_conditions();
    if stays { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(Work::Child(driver.graphs.embed(&child))) }
}

pub fn free_work(driver: &Driver, address: CUdeviceptr) -> R<Work> {
    driver.graphs.memories.get(address).map(Work::Free).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The addresses of a graph node's memory, with the device that is charged for the memory.
struct Place {
    driver: &'static Driver,
    device: Arc<Device>,
    allocation: Allocation,
}

impl graphs::Place for Place {
    fn back(&self) -> R {
        self.device.charge(self.allocation.reserved())
    }

    fn take_away(&self) {
        self.device.discharge(self.allocation.reserved());
    }

    fn release(&self) {
        // This fails if the context was destroyed, because then the memory is already released.
        let _ = self.driver.release_memory(&self.allocation);
    }
}

/// Reserves addresses for a node that allocates memory. The device is charged when an executable graph needs the
/// memory.
pub fn allocate(driver: &'static Driver, context: &Context, size: u64) -> R<Arc<Memory>> {
    let allocation = driver.memory.allocate(size, Kind::Graph, context.device.ordinal, context.id)?;
    let (at, device) = ((allocation.base, size), Arc::clone(&context.device));
    Ok(driver.graphs.memories.add(at, device.ordinal as i32, Place { driver, device, allocation }))
}

fn allocation(params: &CUDA_MEM_ALLOC_NODE_PARAMS) -> R<Arc<Memory>> {
    let driver = driver()?;
    let count = params.accessDescCount;
    let readers = if count == 0 { Vec::new() } else { In::at(params.accessDescs).list(count)? };
    if !params.is_plain(&readers) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = current()?;
    if context.device.ordinal != driver.device(params.poolProps.location.id)?.ordinal {
        return Err(CUDA_ERROR_INVALID_DEVICE);
    }
    allocate(driver, &context, params.bytesize as u64)
}

/// Converts the general node parameters of CUDA 12 to the node's new work.
pub fn changed_work(params: &CUgraphNodeParams) -> R<Work> {
    let of = &params.of;
    // SAFETY: `type_` says which member is valid, and all members are plain numbers and addresses.
    unsafe {
        match params.type_ {
            CU_GRAPH_NODE_TYPE_KERNEL => launch_work(of.kernel),
            CU_GRAPH_NODE_TYPE_MEMCPY => copy_work(of.memcpy.copyParams),
            CU_GRAPH_NODE_TYPE_MEMSET => fill_work(of.memset.memset),
            CU_GRAPH_NODE_TYPE_HOST => host_work(of.host),
            CU_GRAPH_NODE_TYPE_EVENT_RECORD => record_work(of.event),
            CU_GRAPH_NODE_TYPE_WAIT_EVENT => wait_work(of.event),
            CU_GRAPH_NODE_TYPE_GRAPH => match of.graph.ownership {
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => copied_child(driver()?, of.graph.graph),
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => driver()?.graphs.to_move(id(of.graph.graph)).map(Work::Child),
                _ => Err(CUDA_ERROR_INVALID_VALUE),
            },
            _ => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

/// Returns the graph for a child graph node, or `None` if the parameters describe another kind of node.
pub fn child_of(params: &CUgraphNodeParams) -> Option<CUgraph> {
    if params.type_ != CU_GRAPH_NODE_TYPE_GRAPH {
        return None;
    }
    // SAFETY: `type_` says that this member is valid.
    Some(unsafe { params.of.graph.graph })
}

/// Adds a node of any kind. The address of an allocation is written back to `params`.
fn add_any(out: Out<CUgraphNode>, to: CUgraph, after: &[Dependency], params: Out<CUgraphNodeParams>) -> R {
    let mut given = params.get()?;
    // SAFETY: `type_` says which member is valid, and all members are plain numbers and addresses.
    let (alloc, free, chooses) = unsafe { (given.of.alloc, given.of.free, given.of.conditional) };
    match given.type_ {
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let memory = allocation(&alloc)?;
            add(out, to, after, |_| Ok(Work::Allocate(Arc::clone(&memory))))?;
            given.of.alloc = CUDA_MEM_ALLOC_NODE_PARAMS { dptr: memory.address, ..alloc };
            params.set(given)
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => add(out, to, after, |driver| free_work(driver, free)),
        CU_GRAPH_NODE_TYPE_EMPTY => add(out, to, after, |_| Ok(Work::Empty)),
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            let made = driver()?.conditional(id(to), chooses.handle, chooses.type_, chooses.size)?;
            let list = made.list.as_ptr().cast_mut().cast();
            add(out, to, after, |_| Ok(Work::Conditional(Box::new(made))))?;
            given.of.conditional = CUDA_CONDITIONAL_NODE_PARAMS { phGraph_out: list, ..chooses };
            params.set(given)
        }
        _ => add(out, to, after, |_| changed_work(&given)),
    }
}

/// Returns a node's parameters. Fails if the node is not of this kind.
fn describe(node: CUgraphNode, kind: c_uint) -> R<CUgraphNodeParams_union> {
    let driver = driver()?;
    let work = driver.graphs.work_of(id(node))?;
    if graphs::Work::kind(&work) == kind { Ok(params_of(driver, &work)) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Returns a node's parameters. The pointers in them stay valid until the node's work changes.
fn params_of(driver: &Driver, work: &Work) -> CUgraphNodeParams_union {
    let mut of = CUgraphNodeParams_union { bytes: [0; 29] };
    match work {
        Work::Launch(launch) => of.kernel = kernel_params(launch),
        Work::Copy { copy, .. } => {
            of.memcpy = CUDA_MEMCPY_NODE_PARAMS { flags: 0, reserved: 0, copyCtx: handle(0), copyParams: box_of(copy) };
        }
        Work::Fill(fill) => of.memset = CUDA_MEMSET_NODE_PARAMS_v2 { memset: fill_params(fill), ctx: handle(0) },
        Work::Host(call) => {
            let data = ptr::with_exposed_provenance_mut(call.data);
            of.host = CUDA_HOST_NODE_PARAMS { fn_: call.function, userData: data };
        }
        Work::Child(child) => {
            let ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID;
            of.graph = CUDA_CHILD_GRAPH_NODE_PARAMS { graph: handle(driver.graphs.handle_of(child)), ownership };
        }
        Work::Record(event) | Work::Wait(event) => of.event = handle(event.id),
        Work::Allocate(memory) => of.alloc = CUDA_MEM_ALLOC_NODE_PARAMS::of(memory.device, memory.size, memory.address),
        Work::Free(memory) => of.free = memory.address,
        Work::Conditional(conditional) => {
            of.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                handle: conditional.condition.address,
                type_: conditional.kind,
                size: conditional.bodies.len() as c_uint,
                phGraph_out: conditional.list.as_ptr().cast_mut().cast(),
                ctx: handle(0),
            };
        }
        Work::Empty => (),
    }
    of
}

fn kernel_params(launch: &Launch) -> CUDA_KERNEL_NODE_PARAMS {
    let Shape { grid, block, dynamic_shared, .. } = launch.shape;
    let v1 = CUDA_KERNEL_NODE_PARAMS_v1 {
        func: handle(launch.function.id),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: dynamic_shared,
        kernelParams: launch.pointers(),
        extra: ptr::null_mut(),
    };
    CUDA_KERNEL_NODE_PARAMS { v1, kern: handle(0), ctx: handle(launch.context().id) }
}

fn fill_params(fill: &Fill) -> CUDA_MEMSET_NODE_PARAMS {
    let (value, elementSize) = match fill.pattern {
        Pattern::Byte(value) => (value.into(), 1),
        Pattern::Half(value) => (value.into(), 2),
        Pattern::Word(value) => (value, 4),
    };
    let (width, height) = (fill.width as usize, fill.height as usize);
    CUDA_MEMSET_NODE_PARAMS { dst: fill.address, pitch: fill.pitch as usize, value, elementSize, width, height }
}

fn kernel(node: CUgraphNode) -> R<Arc<Launch>> {
    match driver()?.graphs.work_of(id(node))? {
        Work::Launch(launch) => Ok(launch),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn set(node: CUgraphNode, work: Work) -> R {
    driver()?.graphs.set_work(id(node), work)
}

entry_points! {
    fn cuGraphAddKernelNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        add(out, to, &plain(after, count)?, |_| launch_work(params.get()?.into()))
    }

    fn cuGraphAddKernelNode_v2(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        add(out, to, &plain(after, count)?, |_| launch_work(params.get()?))
    }

    fn cuGraphAddMemcpyNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMCPY3D>,
        _context: CUcontext,
    ) {
        add(out, to, &plain(after, count)?, |_| copy_work(params.get()?))
    }

    fn cuGraphAddMemsetNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMSET_NODE_PARAMS>,
        _context: CUcontext,
    ) {
        add(out, to, &plain(after, count)?, |_| fill_work(params.get()?))
    }

    fn cuGraphAddHostNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_HOST_NODE_PARAMS>,
    ) {
        add(out, to, &plain(after, count)?, |_| host_work(params.get()?))
    }

    fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize) {
        add(out, to, &plain(after, count)?, |_| Ok(Work::Empty))
    }

    fn cuGraphAddChildGraphNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, child: CUgraph,
    ) {
        add(out, to, &plain(after, count)?, |driver| copied_child(driver, child))
    }

    fn cuGraphAddEventRecordNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, to, &plain(after, count)?, |_| record_work(event))
    }

    fn cuGraphAddEventWaitNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent,
    ) {
        add(out, to, &plain(after, count)?, |_| wait_work(event))
    }

    fn cuGraphAddMemAllocNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize,
        params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) {
        let given = params.get()?;
        let memory = allocation(&given)?;
        add(out, to, &plain(after, count)?, |_| Ok(Work::Allocate(Arc::clone(&memory))))?;
        params.set(CUDA_MEM_ALLOC_NODE_PARAMS { dptr: memory.address, ..given })
    }

    fn cuGraphAddMemFreeNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, address: CUdeviceptr,
    ) {
        add(out, to, &plain(after, count)?, |driver| free_work(driver, address))
    }

    fn cuGraphAddNode(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, count: usize, params: Out<CUgraphNodeParams>,
    ) {
        add_any(out, to, &plain(after, count)?, params)
    }

    fn cuGraphAddNode_v2 | cuGraphAddNode_v3(
        out: Out<CUgraphNode>, to: CUgraph, after: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize,
        params: Out<CUgraphNodeParams>,
    ) {
        add_any(out, to, &dependencies(after, edges, count)?, params)
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let driver = driver()?;
        if lock(&driver.graphs.graph_of(id(node))?).uses_memory() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        driver.graphs.remove(id(node))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<c_uint>) {
        kind.set(graphs::Work::kind(&driver()?.graphs.work_of(id(node))?))
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: Out<CUgraph>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        out.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_GRAPH)?.graph }.graph)
    }

    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_KERNEL)?.kernel.v1 })
    }

    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_KERNEL)?.kernel })
    }

    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMCPY3D>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_MEMCPY)?.memcpy }.copyParams)
    }

    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMSET_NODE_PARAMS>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_MEMSET)?.memset }.memset)
    }

    fn cuGraphHostNodeGetParams(node: CUgraphNode, params: Out<CUDA_HOST_NODE_PARAMS>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_HOST)?.host })
    }

    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        event.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD)?.event })
    }

    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        event.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT)?.event })
    }

    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        params.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC)?.alloc })
    }

    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: Out<CUdeviceptr>) {
        // SAFETY: `describe` has checked the node's kind, so this member is valid.
        address.set(unsafe { describe(node, CU_GRAPH_NODE_TYPE_MEM_FREE)?.free })
    }

    fn cuGraphNodeGetParams(node: CUgraphNode, params: Out<CUgraphNodeParams>) {
        let driver = driver()?;
        let work = driver.graphs.work_of(id(node))?;
        let of = params_of(driver, &work);
        params.set(CUgraphNodeParams { type_: graphs::Work::kind(&work), reserved0: [0; 3], of, reserved2: 0 })
    }

    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        set(node, launch_work(params.get()?.into())?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        set(node, launch_work(params.get()?)?)
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMCPY3D>) {
        set(node, copy_work(params.get()?)?)
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>) {
        set(node, fill_work(params.get()?)?)
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        set(node, host_work(params.get()?)?)
    }

    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) {
        set(node, record_work(event)?)
    }

    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) {
        set(node, wait_work(event)?)
    }

    fn cuGraphNodeSetParams | cuGraphNodeSetParams_v2(node: CUgraphNode, params: In<CUgraphNodeParams>) {
        set(node, changed_work(&params.get()?)?)
    }

    fn cuGraphKernelNodeGetAttribute(node: CUgraphNode, attribute: c_uint, value: Out<CUlaunchAttributeValue>) {
        let pad = kernel(node)?.attribute(attribute);
        value.set(CUlaunchAttributeValue { pad })
    }

    fn cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: c_uint, value: In<CUlaunchAttributeValue>) {
        let given = CUlaunchAttribute { id: attribute, pad: [0; 4], value: value.get()? };
        set(node, Work::Launch(Arc::new(kernel(node)?.with_attributes(&[given])?)))
    }

    fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode) {
        let attributes = kernel(from)?.attributes();
        set(to, Work::Launch(Arc::new(kernel(to)?.with_attributes(&attributes)?)))
    }
}
