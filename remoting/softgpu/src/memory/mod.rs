//! Memory: the addresses, the bytes behind them, and the allocations there.
//!
//! `arena` and `ranges` are the addresses, `backing`, `frames` and `physical` the bytes; `allocations` is the table of
//! all allocations, also of the program's own memory (`registered`). `pool` and `pooled` are memory in stream order,
//! `vmm` is memory that programs map themselves, `process_handle` and `shared_memory` is memory that processes give
//! each other, and `arrays` and `tensor_map` are forms of it. Called by `api` and by `streams`. It knows nothing of
//! kernels.

pub mod allocations;
pub mod arena;
pub mod arrays;
pub mod backing;
pub mod frames;
pub mod peers;
pub mod physical;
pub mod pool;
pub mod pooled;
pub mod process_handle;
pub mod ranges;
pub mod registered;
pub mod shared_memory;
pub mod tensor_map;
pub mod vmm;
pub mod writes;
