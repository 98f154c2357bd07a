//! What a CUDA driver looks like from outside, without being one: types, codes, and the pure parts every
//! replacement of `libcuda.so.1` needs (symbol versions, private tables, images). No I/O; knows neither the
//! remoting client nor the software GPU.

pub mod attributes;
pub mod constants;
pub mod errors;
mod layout_tests;
pub mod nvml;
pub mod types;
