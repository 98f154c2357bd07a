//! The program's memory on one device: slabs from the worker, and the allocations in them.
//!
//! `state` holds a [`DeviceMemory`], which each device has; the other files have what it does: `allocate` for usual
//! allocations, `quota` for memory outside the heap, `graph_memory` and `shared_memory` for memory of graphs and of
//! several processes, `bounds` for a driver that checks accesses. `heap` decides where a piece lies in a slab (pure);
//! `synchronous` keeps a mark of the program's. Called by `memory`, `objects` and `abi`.

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
