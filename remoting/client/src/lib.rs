//! The library that takes the place of `libcuda.so.1` (and, under a second name, of `libnvidia-ml.so.1`) in a program's
//! process and has its work done on GPUs of an appliance.
//!
//! `abi` holds the exported functions, thin; what they act on is in the modules named after it. `session` is the
//! connection to a worker, `memory` decides where allocations lie, `connect` reaches appliances. `SAFETY.md` says
//! which files contain `unsafe` code and why it is sound.

// The body of an exported function is one unsafe block, which the macros that declare them write.
#![allow(clippy::macro_metavars_in_unsafe)]

mod abi;
mod answers;
mod arrays;
pub mod boundary;
pub mod call;
mod conditions;
pub mod connect;
mod context;
mod copy;
mod devices;
mod event;
mod executable;
mod fill;
mod generated;
mod graph;
mod handles;
mod host_function;
mod launch;
mod library;
mod log;
mod memory;
mod module;
pub mod nvml;
mod nvml_generated;
mod peer;
mod pool;
mod process;
pub mod session;
mod shared_event;
pub mod stats;
mod stream;
mod sys;
mod tensor_map;
mod ticket;
mod vmm;

/// A `CUresult` other than success.
pub type Code = driverapi::types::CUresult;
