//! Where allocations lie: `ranges` and `heap` decide (pure), `device` talks to the worker, `host` knows the program's
//! pinned memory.

mod device;
mod heap;
pub mod host;
mod ranges;

pub use device::{DeviceMemory, Origin, find_allocation};
pub use heap::Piece;
pub use ranges::Ranges;
