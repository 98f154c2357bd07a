//! The software GPU: a `libcuda.so.1` and `libnvidia-ml.so.1` that execute PTX on the CPU.
//!
//! `api` and `nvml` are the entry points that programs call; everything below them is safe Rust except for the files
//! named in SAFETY.md. It knows nothing of remoting: a program or a worker loads it as it would load NVIDIA's driver.

pub mod engine;

mod api;
mod arena;
mod arrays;
mod backing;
mod check;
mod code;
mod conditions;
mod config;
mod context;
mod copy;
mod copying;
mod device;
mod driver;
mod ffi;
mod frames;
mod handles;
mod jit;
mod launch;
mod link;
mod loading;
mod memory;
mod model;
mod nvml;
mod peers;
mod physical;
mod pool;
mod pooled;
mod process_handle;
mod queue;
mod ranges;
mod registered;
mod rules;
mod shared_event;
mod shared_memory;
mod signals;
mod source;
mod stream;
mod tensor_map;
mod vmm;
mod work;
mod writes;
