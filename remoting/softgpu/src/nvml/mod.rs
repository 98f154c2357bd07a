//! The entry points of `libnvidia-ml.so.1`, which management tools query. NVML shows all devices of the machine, even
//! if CUDA_VISIBLE_DEVICES hides some, but only the calling process. Queries that have no meaning for a CPU
//! (temperature, power, fans) are not supported, and tools show them as N/A.

#![allow(non_snake_case)]

mod entry;
mod hardware;
mod info;
mod links;
mod refused;
mod system;
