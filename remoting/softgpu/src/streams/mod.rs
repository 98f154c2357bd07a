//! Streams: work in order. What a stream is given, its `queue` does on a thread of its own.
//!
//! `context` has the streams of a program on a device, and the fault that ends them; `stream` has the rules of CUDA's
//! order and events, `shared_event` the events of several processes, and `callback` calls functions of the program.
//! Called by `driver`. Work is a closure here: what it does, only `work` knows.

pub mod callback;
pub mod context;
pub mod queue;
pub mod shared_event;
pub mod stream;
