//! CUDA graphs without a GPU: nodes, edges, and the state of stream captures.
//!
//! The software GPU and the client store graphs in these types, and each defines its own type for the work of a node
//! ([`Work`]). This crate does no I/O. Its errors are those that the CUDA driver API documents.

#![forbid(unsafe_code)]

mod capture;
mod conditional;
mod dot;
mod edge;
mod flat;
mod graph;
mod holding;
mod memories;
mod memory;
mod registry;
mod result;
mod update;
mod user_object;
mod within;
mod work;

pub use capture::{Captures, LaunchEdges, Mode, State, Stream, StreamKind};
pub use conditional::{Conditional, check_bodies};
pub use dot::dot;
pub use edge::{Dependency, Edge, NodeId};
pub use flat::{Step, steps};
pub use graph::{Graph, Node, Owner, SharedGraph, lock};
pub use memories::{Memories, MemoryState};
pub use memory::{Backed, Memory, MemoryUse, Place};
pub use registry::{Registry, exchange_mode};
pub use result::Result;
pub use update::{Misfit, update};
pub use work::Work;
