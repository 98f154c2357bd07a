//! The library that takes the place of `libcuda.so.1` (and, under a second name, of `libnvidia-ml.so.1`) in a program's
//! process and has its work done on GPUs of an appliance.
//!
//! `abi` holds the exported functions, thin; `boundary` holds what they share. They act on `objects`, which have
//! handles, and by `launch`, `module`, `copies` and `graphs`. `devices` has the devices, contexts and allocations,
//! `memory` the host's memory that devices use, `session` the connection to a worker. `connect` reaches appliances,
//! `program` is the process around us. `locks` has the order of all locks. `nvml` is the second library. `SAFETY.md` says
//! which files contain `unsafe` code and why it is sound.

// The body of an exported function is one unsafe block, which the macros that declare them write.
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
