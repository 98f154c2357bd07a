//! Driver calls that build graphs from nodes, instantiate graphs and launch them.

use super::library::packed;
use super::{Driver, Handle, Raw, Result};
use driverapi::constants::{CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL};
use driverapi::types::*;
use std::ptr::null_mut;

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

    /// Adds a kernel node. [`Self::graph_set_attribute`] sets the configuration's attributes; `parameters` is the
    /// kernel's packed parameter buffer, which the driver copies.
    pub fn graph_add_kernel(
        &self,
        graph: Handle,
        after: &[Handle],
        function: Handle,
        config: &CUlaunchConfig,
        parameters: &[u8],
    ) -> Result<Handle> {
        let (after, mut size) = (raw(after), parameters.len());
        let mut extra = packed(parameters, &mut size);
        let params = CUDA_KERNEL_NODE_PARAMS_v1 {
            func: function.raw(),
            gridDimX: config.gridDimX,
            gridDimY: config.gridDimY,
            gridDimZ: config.gridDimZ,
            blockDimX: config.blockDimX,
            blockDimY: config.blockDimY,
            blockDimZ: config.blockDimZ,
            sharedMemBytes: config.sharedMemBytes,
            kernelParams: null_mut(),
            extra: extra.as_mut_ptr(),
        };
        let params = params.into();
        get!(self.graph_add_kernel(null_mut(), graph.raw(), after.as_ptr(), after.len(), &params)).map(Handle::from)
    }

    /// Creates a condition for a conditional node of this graph. Returns the driver's handle of the condition.
    pub fn graph_condition(&self, graph: Handle, context: Handle, default: Option<u32>) -> Result<u64> {
        let flags = if default.is_some() { CU_GRAPH_COND_ASSIGN_DEFAULT } else { 0 };
        get!(self.graph_condition(0, graph.raw(), context.raw(), default.unwrap_or(0), flags))
    }

    /// Adds a conditional node of a given kind. Returns the node and its body graphs, which are empty.
    pub fn graph_add_choice(
        &self,
        graph: Handle,
        after: &[Handle],
        (handle, kind): (u64, u32),
        size: u32,
        context: Handle,
    ) -> Result<(Handle, Vec<Handle>)> {
        let after = raw(after);
        let conditional =
            CUDA_CONDITIONAL_NODE_PARAMS { handle, type_: kind, size, phGraph_out: null_mut(), ctx: context.raw() };
        let mut of = CUgraphNodeParams_union { bytes: [0; 29] };
        of.conditional = conditional;
        let mut params =
            CUgraphNodeParams { type_: CU_GRAPH_NODE_TYPE_CONDITIONAL, reserved0: [0; 3], of, reserved2: 0 };
        let (before, params) = ((after.as_ptr(), after.len()), &raw mut params);
        let added = get!(self.graph_add_node(null_mut(), graph.raw(), before.0, before.1, params)).map(Handle::from)?;
        // SAFETY: the driver has filled in the union member that the type selects: a list of `size` graphs, which the
        // driver owns.
        let made = unsafe { std::slice::from_raw_parts((*params).of.conditional.phGraph_out, size as usize) };
        Ok((added, made.iter().map(|graph| Handle::from(*graph)).collect()))
    }

    pub fn graph_add_copy(
        &self,
        graph: Handle,
        after: &[Handle],
        copy: &CUDA_MEMCPY3D,
        context: Handle,
    ) -> Result<Handle> {
        let after = raw(after);
        get!(self.graph_add_copy(null_mut(), graph.raw(), after.as_ptr(), after.len(), copy, context.raw()))
            .map(Handle::from)
    }

    pub fn graph_add_fill(
        &self,
        graph: Handle,
        after: &[Handle],
        fill: &CUDA_MEMSET_NODE_PARAMS,
        context: Handle,
    ) -> Result<Handle> {
        let after = raw(after);
        get!(self.graph_add_fill(null_mut(), graph.raw(), after.as_ptr(), after.len(), fill, context.raw()))
            .map(Handle::from)
    }

    /// Adds an edge between two nodes. Returns `CUDA_ERROR_NOT_SUPPORTED` before CUDA 12.3.
    pub fn graph_connect(&self, graph: Handle, from: Handle, to: Handle, edge: &CUgraphEdgeData) -> Result<()> {
        call!(self.graph_connect(graph.raw(), &from.raw(), &to.raw(), edge, 1))
    }

    pub fn graph_set_attribute(&self, node: Handle, attribute: &CUlaunchAttribute) -> Result<()> {
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
