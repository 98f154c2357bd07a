//! The software GPU: a `libcuda.so.1` and `libnvidia-ml.so.1` that execute PTX on the CPU.
//!
//! `api` and `nvml` are the entry points that programs call. The modules below them are `driver`, `work`, `kernels`,
//! `streams`, `memory`, `process`, `check`, `engine` and `ffi`. Each uses only the modules after it. All of them are
//! safe Rust, except the files that SAFETY.md names. The crate does not depend on remoting: a program or a worker loads
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
