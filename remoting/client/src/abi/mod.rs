//! The exported functions, thin: they follow the caller's pointers, call the code that does the work, and store
//! results. `generated.rs` (next to `lib.rs`) holds those that follow from the function table alone.
//!
//! There is one file for each group of the CUDA driver API's functions, so there are more than twenty. The work is done
//! next to `abi`, mostly in a file of the same name. Called by the program; in the client only `generated.rs` uses
//! `launch`.

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
