//! CUDA graphs without a GPU: nodes and edges, and a stream capture's records of the program's calls.
//!
//! The software GPU and the client keep graphs by these types, and define the work of a node ([`Work`]). Nothing here
//! does I/O; the errors are those that the CUDA driver API documents.

#![forbid(unsafe_code)]

mod capture;
mod conditional;
mod dot;
mod edge;
mod flat;
mod graph;
mod memory;
mod registry;
mod update;
mod user_object;
mod within;

pub use capture::{Captures, LaunchEdges, Mode, State, Stream, StreamKind};
pub use conditional::{Conditional, check_bodies};
pub use dot::dot;
pub use edge::{Dependency, Edge};
pub use flat::{Step, steps};
pub use graph::{Graph, Node, NodeId};
pub use memory::{Backed, Memories, Memory, MemoryState, MemoryUse, Place};
pub use registry::{Registry, Work, exchange_mode};
pub use update::{Misfit, update};
pub use within::Owner;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The error is the code that the program sees.
pub type Result<T> = std::result::Result<T, driverapi::types::CUresult>;

/// A graph that the program holds and a capture may write to.
pub type SharedGraph<W> = Arc<Mutex<Graph<W>>>;

/// A graph stays usable after a panic: each change is made at once.
pub fn lock<W>(graph: &SharedGraph<W>) -> MutexGuard<'_, Graph<W>> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes of tests: those whose names begin with "copy" are no kernels.
#[cfg(test)]
impl Work for &'static str {
    fn kind(&self) -> u32 {
        use driverapi::constants::{CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY};
        if self.starts_with("copy") { CU_GRAPH_NODE_TYPE_MEMCPY } else { CU_GRAPH_NODE_TYPE_KERNEL }
    }

    fn memory(&self) -> Option<(MemoryUse, &Arc<Memory>)> {
        None
    }

    fn child(&self) -> Option<&SharedGraph<Self>> {
        None
    }

    fn with_child(&self, _: SharedGraph<Self>) -> Self {
        self
    }
}
