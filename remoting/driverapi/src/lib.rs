//! A CUDA driver's interface, without an implementation: types, codes, and the pure parts that every replacement of
//! `libcuda.so.1` needs (symbol versions, private tables, images). Knows neither the remoting client nor the software
//! GPU; no I/O but the lines of `report` and the environment of `settings`.
//!
//! There is one file for each subject of the interface, or each group of the CUDA driver API's functions, so there are
//! more than twenty. Used by client, worker, software GPU, `graphs`, `trace`, `smi` and `bench`.

pub mod arrays;
pub mod attributes;
pub mod caller;
pub mod constants;
pub mod context_storage;
pub mod cubin;
pub mod descriptors;
pub mod device_bytes;
pub mod errors;
pub mod export_tables;
pub mod fatbin;
pub mod forks;
pub mod host_memory;
pub mod image;
pub mod integrity;
mod layout_tests;
pub mod limits;
pub mod managed;
pub mod memory_operations;
pub mod nvml;
pub mod nvml_links;
pub mod of_thread;
pub mod old_launch;
pub mod proc_address;
mod proc_table_generated;
mod ptx_variables;
pub mod refusals;
pub mod registers;
pub mod report;
pub mod settings;
pub mod types;
pub mod variables;
pub mod views;
pub mod written;
