//! The software GPU: a `libcuda.so.1` and `libnvidia-ml.so.1` that execute PTX on the CPU.
//!
//! `api` and `nvml` are the entry points that programs call; everything below them is safe Rust except for the files
//! named in SAFETY.md. Below them are, each using only what comes after it, `driver`, `work`, `kernels`, `streams`,
//! `memory`, `process`, `check`, `engine` and `ffi`. The crate knows nothing of remoting: a program or a worker loads
//! it as it would load NVIDIA's driver.

pub mod engine;

mod api;
mod check;
mod driver;
mod ffi;
mod kernels;
mod memory;
mod nvml;
mod process;
mod streams;
mod work;
