//! The software GPU's engine, which compiles PTX text and runs kernels on the CPU.
//!
//! `Program::compile` parses and links PTX and decodes it to a compact form. An `Image` has device addresses for a
//! program's global variables. `launch` runs one kernel. Its blocks start in increasing linear id, each runs on one OS
//! thread, and 32 lanes are executed at a time. A device address is a host address, and each access is first checked
//! against a [`MemoryMap`].

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
