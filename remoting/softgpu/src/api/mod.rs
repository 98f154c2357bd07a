//! The entry points of `libcuda.so.1`, in files by subject. Their names, arguments and meaning are CUDA's.
//!
//! Each file has one group of functions of the CUDA driver API. `entry` defines the form of all entry points, and
//! `refused` has the functions that are not supported. Programs call these functions, and so does a worker that loaded
//! this library. The files read arguments and store results. `driver` does the work, and `engine` executes PTX.

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
