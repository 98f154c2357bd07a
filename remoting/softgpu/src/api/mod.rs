//! The entry points of `libcuda.so.1`, in files by subject. Their names, arguments and meaning are CUDA's.
//!
//! There is one file for each group of the CUDA driver API's functions, so there are more than twenty. `refused` has
//! the functions that exist and are refused, and `entry` is the form of all. Called by programs, or by a worker that
//! loaded this library. The files read arguments and store results; `driver` does the work. What PTX means is
//! `engine`'s.

#![allow(non_snake_case)]

mod arrays;
mod capturing;
mod contexts;
mod copying;
mod default_stream;
mod devices;
mod entry;
mod fills;
mod graph_execs;
mod graph_nodes;
mod graphs;
mod handles;
mod host_memory;
mod ipc;
mod kernels;
mod launching;
mod libraries;
mod linking;
mod lookup;
mod managed;
mod memory;
mod memory_operations;
mod modules;
mod old_launches;
mod pointers;
mod pools;
mod refused;
mod stream_attributes;
mod streams;
mod tensor_maps;
mod virtual_memory;
