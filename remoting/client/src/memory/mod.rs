//! Where allocations lie: `ranges` and `heap` decide (pure), `device` talks to the worker, `host` knows the program's
//! pinned memory, `mapped` lets kernels use it.

mod device;
mod heap;
pub mod host;
pub mod mapped;
mod ranges;

pub use device::{DeviceMemory, Origin, find_allocation};
pub use heap::Piece;
pub use ranges::Ranges;
