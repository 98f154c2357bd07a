//! Memory: the addresses, the bytes behind them, and the allocations there.
//!
//! `arena` and `ranges` are the addresses, `backing`, `frames` and `physical` the bytes; `allocations` is the table of
//! all allocations, also of the program's own memory (`registered`), and `peers` says which devices reach it. `pool`
//! is memory in stream order, `process_handle` and `shared_memory` is memory that processes give each other, `arrays`
//! and `tensor_map` are forms of it, and `copy` says what copies and fills touch. Called by `driver`, which decides
//! when, and by `streams`. It knows nothing of kernels, streams and contexts.

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
