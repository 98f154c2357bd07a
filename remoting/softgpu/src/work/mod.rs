//! The work that a stream executes and that a node of a graph contains.
//!
//! `item` is one work. `conditional` is a node that chooses between graphs by a `condition`, and `executable` queues a
//! whole graph. `driver` creates works and queues them in streams. The crate `graphs` defines graphs. This module does
//! not use handles.

mod condition;
mod conditional;
mod executable;
mod item;

pub use condition::Condition;
pub use conditional::Conditional;
pub use executable::Executable;
pub use item::{HostCall, Work};
