//! The objects behind a program's handles: contexts, streams, events, libraries, pools, arrays.
//!
//! A handle is a number that `handles` looks up, never an address. Each file has one kind of object: what the client
//! itself knows about it, and which commands make, change and end it in the worker. `devices` says which GPUs the
//! program sees, and `ticket` is what processes of a lease give each other. Called by `abi`. How commands travel is
//! `session`'s.

pub mod answers;
pub mod arrays;
pub mod context;
pub mod devices;
pub mod event;
pub mod handles;
pub mod host_function;
pub mod library;
pub mod pool;
pub mod shared_event;
pub mod stream;
pub mod tensor_map;
pub mod ticket;
