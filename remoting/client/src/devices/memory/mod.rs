//! The program's memory on one device: slabs from the worker, and the allocations in them.
//!
//! `state` defines [`DeviceMemory`], and each device has one. Its methods are in the other files: `allocate` for
//! ordinary allocations, `quota` for memory outside the heap, `graph_memory` for graphs, `shared_memory` for memory
//! that several processes share, and `bounds` for drivers that check accesses. `heap` decides where a piece lies in a
//! slab (without side effects). `synchronous` stores a pointer attribute that the program sets. The callers are
//! `memory`, `objects` and `abi`.

mod allocate;
mod bounds;
mod graph_memory;
pub mod heap;
mod quota;
mod shared_memory;
mod state;
pub mod synchronous;

pub use allocate::find_allocation;
pub use heap::Piece;
pub use state::{DeviceMemory, Origin, Place};
