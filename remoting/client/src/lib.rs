//! The library that replaces `libcuda.so.1` (and, under a second name, `libnvidia-ml.so.1`) in a program's process. It
//! runs the program's CUDA work on GPUs of an appliance.
//!
//! `abi` has the exported functions, and `boundary` their shared parts. `objects` has the objects that have handles.
//! `launch`, `module`, `copies` and `graphs` implement the work. `devices` has the devices, contexts and allocations,
//! `memory` the host memory that devices use, and `session` the connection to a worker. `connect` connects to
//! appliances, and `program` deals with the process. `locks` defines the order of all locks. `nvml` is the second
//! library. `SAFETY.md` lists the files with `unsafe` code and says why it is sound.

// The macros that declare exported functions put each body into one unsafe block.
#![allow(clippy::macro_metavars_in_unsafe)]

mod abi;
pub mod boundary;
pub mod call;
mod code;
pub mod connect;
mod copies;
mod devices;
mod ending;
mod generated;
mod graphs;
mod launch;
mod locks;
mod memory;
mod module;
pub mod nvml;
mod nvml_generated;
mod objects;
pub mod program;
pub mod session;

pub(crate) use boundary::{early_exports, exports, stream_exports};
pub use code::Code;
