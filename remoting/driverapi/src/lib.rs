//! The interface of a CUDA driver, without an implementation: types, codes, and the parts that every replacement of
//! `libcuda.so.1` needs (symbol versions, private tables, images).
//!
//! This crate must not depend on the remoting client or the software GPU. It does no I/O, except the lines of `report`
//! and the environment variables of `settings`. Client, worker, software GPU, `graphs`, `trace`, `smi` and `bench` use
//! it.
//!
//! Each file is one subject of the interface, or one group of the CUDA driver API's functions.

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
pub mod rules;
pub mod settings;
pub mod types;
pub mod variables;
pub mod views;
pub mod written;
