//! From syntax trees to decoded code: linking, decoding, register allocation, layout.

mod allocate;
mod decode;
mod flow;
mod grid;
mod link;
mod lower;
mod pool;
mod shared;

pub use link::{Contents, Linked, MAX_SHARED, compile};
