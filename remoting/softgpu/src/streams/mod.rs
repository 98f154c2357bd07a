//! Streams, which do work in order. A stream's `queue` does the work on a thread of its own.
//!
//! `context` has a program's streams on one device, and the fault that ends them. `stream` has CUDA's rules for order
//! and events, `shared_event` has events that several processes use, and `callback` calls functions of the program.
//! `driver` calls this module. A work is a closure here, and `work` defines what it does.

pub mod callback;
pub mod context;
pub mod queue;
pub mod shared_event;
pub mod stream;
