//! The software GPU's engine: PTX text in, kernels run on the CPU out.
//!
//! `Program::compile` parses and links PTX and decodes it to a compact instruction form; an `Image` gives its globals
//! device addresses; `launch` runs one kernel: blocks in increasing linear id, each on one OS thread, 32 lanes at a time.
//! A device address is a host address; every access is checked against a [`MemoryMap`] first.

mod code;
mod compile;
mod computing;
mod describe;
mod exec;
mod heap;
mod interface;
mod launch;
mod memory_map;
mod outcome;
mod pool;
mod program;
mod ptx;
mod registers;
mod texture;
pub mod watch;

pub(crate) use computing::{computes, computing};
pub(crate) use exec::MAX_LOCAL;

pub use interface::{CompileError, Global, Kernel, Param, Space};
pub use launch::{LaunchSpec, launch};
pub use memory_map::MemoryMap;
pub use outcome::{Fault, Output};
pub use pool::ThreadPool;
pub use program::{Image, Program};
pub use registers::registers_for;
pub use texture::{Addressing, Sampling, Texels, Texture, Textures};
