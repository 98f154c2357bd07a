//! The interpreter of decoded code. A block has warps of 32 lanes, a warp has groups of lanes that share a pc, and each
//! instruction form has a handler.
//!
//! `block`, `warp`, `lockstep`, `registers` and `lanes` are the machine. `in_step` has its state in lockstep, and
//! `arrivals` the state of barriers. `handler` is the interface of the handlers. The handlers of each kind of
//! instruction are in one file, as in the sections of the PTX ISA. `engine::launch` runs blocks, and `compile` names
//! handlers. The interpreter sees only decoded code, not PTX text. It accesses memory only through addresses that were
//! checked.

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
