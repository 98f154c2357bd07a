//! The compiler, from syntax trees to decoded code: linking, decoding, register allocation and layout.
//!
//! `link` parses the units, links their `names`, and calls `lower` for each function. There `decode` creates the
//! instructions, `flow` orders the blocks and `allocate` assigns registers. `shared` and `pool` place variables and
//! constants. `program` calls this module. It only names the handlers in `exec`, and executes nothing.

mod allocate;
mod decode;
mod flow;
mod grid;
mod link;
mod lower;
mod names;
mod pool;
mod shared;

pub use link::{Contents, Linked, MAX_SHARED, compile};
