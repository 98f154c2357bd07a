//! The exported functions of the CUDA driver API. They only read the caller's pointers, call the implementation, and
//! store the results. `generated.rs` (next to `lib.rs`) has the functions that are generated from the function table.
//!
//! There is one file for each group of functions, so there are more than twenty. The implementations are in the folders
//! next to `abi`, usually in a file of the same name. The program calls these functions; inside the client only
//! `generated.rs` calls `launch`.

mod arrays;
mod batch;
mod capture;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod fill;
mod graph;
mod graph_exec;
mod graph_nodes;
mod host_memory;
mod ipc;
pub mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod memory_operations;
mod module;
mod occupancy;
mod old_launch;
mod pointer;
mod pool;
mod stream;
mod stream_attributes;
mod tensor_map;
mod vmm;
