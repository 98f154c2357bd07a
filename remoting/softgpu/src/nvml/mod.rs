//! The entry points of `libnvidia-ml.so.1`: the queries of management tools. NVML shows the machine's devices, whatever
//! CUDA_VISIBLE_DEVICES says, and only the calling process. Queries that a CPU cannot answer (temperature, power, fans)
//! are not supported, which tools show as N/A.

#![allow(non_snake_case)]

mod entry;
mod hardware;
mod info;
mod links;
mod refused;
mod system;
