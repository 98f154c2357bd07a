//! Placement of allocations: `heap` decides (pure), `device` talks to the worker, `host` knows the
//! program's pinned memory, `pinned` finds the part that kernels get, `mapped` (with `granules` and `changes`) mirrors
//! that within a `budget`. `taken` charges what the device's driver takes by itself; `synchronous` keeps a mark of the
//! program's.

mod budget;
mod changes;
mod device;
mod granules;
mod heap;
pub mod host;
pub mod managed;
pub mod mapped;
pub mod pinned;
pub mod synchronous;
pub mod taken;
pub mod variables;
pub mod vmm;

pub use device::{DeviceMemory, Origin, Place, find_allocation};
pub use heap::Piece;
