//! The interpreter: blocks, warps of 32 lanes, groups of lanes that share a pc, and a handler per instruction form.
//!
//! `block`, `warp`, `lockstep`, `registers` and `lanes` are the machine (its state in step is in `in_step`, that of
//! barriers in `arrivals`), and `handler` is the interface of the handlers. Handlers have one file for each kind of
//! instruction, like the sections of the PTX ISA, so there are more than twenty. `engine::launch` runs blocks, and
//! `compile` names handlers. It sees decoded code only, no PTX text, and reaches memory only through addresses that
//! were checked.

mod address;
mod affine;
mod arrivals;
pub mod atomics;
pub mod barrier;
mod block;
pub mod collective;
pub mod control;
pub mod convert;
mod double;
pub mod float;
pub mod fp8;
mod gather;
pub mod half;
mod handler;
mod host;
mod in_step;
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
pub mod packed;
pub mod pairs;
mod printf;
mod registers;
pub mod special;
pub mod syscall;
pub mod textures;
pub mod video;
mod warp;
mod watched;
pub mod whole;
pub mod wmma;

pub use block::{Block, Launch, Turn};
pub use handler::{Handler, exec};
pub use host::Host;
pub use lanes::{LANES, Slot, spread};
pub use local::MAX_LOCAL;
