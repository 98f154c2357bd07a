//! The objects behind a program's handles: streams, events, libraries, pools and arrays.
//!
//! A handle is a number that `devices::handles` looks up, never an address. Each file has one kind of object: its state
//! in the client, and the commands that create, change and destroy it in the worker. `sides` describes where the bytes
//! of a copy lie. The callers are `abi`, `copies`, `graphs` and `launch`. `session` sends the commands.

pub mod arrays;
pub mod event;
pub mod host_function;
pub mod library;
pub mod pool;
pub mod shared_event;
pub mod sides;
pub mod stream;
pub mod tensor_map;
