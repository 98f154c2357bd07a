//! The interpreter: blocks, warps of 32 lanes, groups of lanes that share a pc, and a handler per instruction form.

mod address;
mod affine;
pub mod atomics;
pub mod barrier;
mod block;
pub mod collective;
pub mod control;
pub mod convert;
pub mod float;
pub mod fp8;
mod gather;
pub mod half;
mod handler;
mod host;
pub mod int;
mod lanes;
mod local;
mod lockstep;
pub mod matrix;
pub mod matrix_f64;
pub mod mbarrier;
pub mod memory;
pub mod number;
pub mod ops;
pub mod pairs;
mod printf;
mod registers;
pub mod special;
pub mod syscall;
mod warp;
pub mod wmma;

pub use block::{Block, Launch, Turn};
pub use handler::{Handler, exec};
pub use host::Host;
pub use lanes::{LANES, Slot, spread};
pub use local::MAX_LOCAL;
