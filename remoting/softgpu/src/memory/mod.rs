//! Memory: addresses, the bytes behind them, and the allocations.
//!
//! `arena` and `ranges` manage addresses, and `backing`, `frames` and `physical` hold bytes. `allocations` is the table
//! of all allocations, which includes the program's own memory (`registered`), and `peers` lists the devices that can
//! access it. `pool` is stream-ordered memory, and `process_handle` and `shared_memory` are for memory that processes
//! share. `arrays` and `tensor_map` are forms of memory, and `copy` does copies and fills. `driver` and `streams` call
//! this module. It does not use kernels, streams or contexts.

pub mod allocations;
pub mod arena;
pub mod arrays;
pub mod backing;
pub mod copy;
pub mod frames;
pub mod peers;
pub mod physical;
pub mod pool;
pub mod process_handle;
pub mod ranges;
pub mod registered;
pub mod shared_memory;
pub mod tensor_map;
pub mod writes;
