//! From syntax trees to decoded code: linking, decoding, register allocation, layout.
//!
//! `link` begins: it parses the units, links their `names`, and has `lower` translate each function, for which `decode`
//! makes the instructions, `flow` orders the blocks and `allocate` chooses the registers. `shared` and `pool` place
//! variables and constants. Called by `program`. It runs nothing: it only names the handlers of `exec`.

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
