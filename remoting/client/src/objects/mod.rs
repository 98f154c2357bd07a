//! The objects behind a program's handles: streams, events, libraries, pools, arrays.
//!
//! A handle is a number that `devices::handles` looks up, never an address. Each file has one kind of object: what the
//! client itself knows about it, and which commands make, change and end it in the worker. `sides` says where the bytes
//! of a copy lie. Called by `abi`, `copies`, `graphs` and `launch`. How commands travel is `session`'s.

pub mod arrays;
pub mod event;
pub mod host_function;
pub mod library;
pub mod pool;
pub mod shared_event;
pub mod sides;
pub mod stream;
pub mod tensor_map;
