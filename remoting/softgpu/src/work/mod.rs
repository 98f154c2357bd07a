//! Work: what a stream does in its turn, and what a node of a graph stands for.
//!
//! `item` is one work; `conditional` is one that chooses among graphs by a `condition`, and `executable` queues a whole
//! graph. `driver` makes works and hands them to streams; graphs themselves are of the crate `graphs`. It knows no
//! handles.

mod condition;
mod conditional;
mod executable;
mod item;

pub use condition::Condition;
pub use conditional::Conditional;
pub use executable::Executable;
pub use item::{HostCall, Work};
