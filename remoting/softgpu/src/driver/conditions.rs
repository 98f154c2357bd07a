//! Creation of graph conditions and of the conditional nodes that read them.

use super::state::Driver;
use crate::ffi::R;
use crate::memory::allocations::Kind;
use crate::streams::context::Context;
use crate::work::{Condition, Conditional};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::Arc;

impl Driver {
    /// Creates a condition of a graph and returns its handle. `default` is its value at the start of each launch.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if `graph` is not the handle of a graph, `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn create_condition(&self, graph: usize, context: Arc<Context>, default: Option<u32>) -> R<u64> {
        self.graphs.graph(graph)?;
        let size = size_of::<u32>() as u64;
        let address = self.memory.allocate(size, Kind::Globals, context.device.ordinal, context.id)?.base;
        let condition = Condition { address, context, graph, default, is_null: self.model().null };
        condition.assign_default();
        self.conditions.insert(address as usize, Arc::new(condition));
        Ok(address)
    }

    /// Creates a conditional node for a graph. The node's own graphs are still empty.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the condition does not belong to this graph, or if this kind of node cannot have
    /// `size` graphs.
    pub fn conditional(&self, graph: usize, handle: u64, kind: u32, size: u32) -> R<Conditional> {
        let condition = self.conditions.get(handle as usize).filter(|condition| condition.graph == graph);
        let condition = condition.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Conditional::new(&self.graphs, condition, kind, size)
    }
}
