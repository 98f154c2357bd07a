//! Graphs: they are made of nodes, instantiated and launched.

use super::{Copy3d, Driver, Handle, Raw, RawAttribute, Result, code};
use driverapi::constants::{CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE};
use driverapi::types::{CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMSET_NODE_PARAMS};
use std::ptr::null_mut;

/// A kernel; `parameters` is its packed parameter buffer, which the driver copies.
pub struct KernelNode<'a> {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: &'a [u8],
}

pub type MemsetNode = CUDA_MEMSET_NODE_PARAMS;

fn raw(handles: &[Handle]) -> Vec<Raw> {
    handles.iter().map(|handle| handle.raw()).collect()
}

impl Driver {
    pub fn graph_create(&self) -> Result<Handle> {
        get!(self.graph_create(null_mut(), 0)).map(Handle::from)
    }

    pub fn graph_add_empty(&self, graph: Handle, after: &[Handle]) -> Result<Handle> {
        let after = raw(after);
        get!(self.graph_add_empty(null_mut(), graph.raw(), after.as_ptr(), after.len())).map(Handle::from)
    }

    pub fn graph_add_kernel(&self, graph: Handle, after: &[Handle], kernel: &KernelNode<'_>) -> Result<Handle> {
        let (after, mut size) = (raw(after), kernel.parameters.len());
        let mut extra = [
            Handle(CU_LAUNCH_PARAM_BUFFER_POINTER).raw(),
            kernel.parameters.as_ptr().cast_mut().cast(),
            Handle(CU_LAUNCH_PARAM_BUFFER_SIZE).raw(),
            (&raw mut size).cast(),
            null_mut(),
        ];
        let v1 = CUDA_KERNEL_NODE_PARAMS_v1 {
            func: kernel.function.raw(),
            gridDimX: kernel.grid[0],
            gridDimY: kernel.grid[1],
            gridDimZ: kernel.grid[2],
            blockDimX: kernel.block[0],
            blockDimY: kernel.block[1],
            blockDimZ: kernel.block[2],
            sharedMemBytes: kernel.shared,
            kernelParams: null_mut(),
            extra: extra.as_mut_ptr(),
        };
        let params = v1.into();
        get!(self.graph_add_kernel(null_mut(), graph.raw(), after.as_ptr(), after.len(), &params)).map(Handle::from)
    }

    pub fn graph_add_copy(&self, graph: Handle, after: &[Handle], copy: &Copy3d, context: Handle) -> Result<Handle> {
        let after = raw(after);
        get!(self.graph_add_copy(null_mut(), graph.raw(), after.as_ptr(), after.len(), copy, context.raw()))
            .map(Handle::from)
    }

    pub fn graph_add_fill(
        &self,
        graph: Handle,
        after: &[Handle],
        fill: &MemsetNode,
        context: Handle,
    ) -> Result<Handle> {
        let after = raw(after);
        get!(self.graph_add_fill(null_mut(), graph.raw(), after.as_ptr(), after.len(), fill, context.raw()))
            .map(Handle::from)
    }

    pub fn graph_set_attribute(&self, node: Handle, attribute: &RawAttribute) -> Result<()> {
        call!(self.graph_set_attribute(node.raw(), attribute.id, &attribute.value))
    }

    pub fn graph_instantiate(&self, graph: Handle, flags: u64) -> Result<Handle> {
        get!(self.graph_instantiate(null_mut(), graph.raw(), flags)).map(Handle::from)
    }

    pub fn graph_launch(&self, executable: Handle, stream: Handle) -> Result<()> {
        call!(self.graph_launch(executable.raw(), stream.raw()))
    }

    pub fn graph_exec_destroy(&self, executable: Handle) -> Result<()> {
        call!(self.graph_exec_destroy(executable.raw()))
    }

    pub fn graph_destroy(&self, graph: Handle) -> Result<()> {
        call!(self.graph_destroy(graph.raw()))
    }
}
