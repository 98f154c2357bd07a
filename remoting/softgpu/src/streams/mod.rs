//! Streams: work in order. A call's request becomes `work`, which a stream's `queue` does on a thread of its own.
//!
//! `stream` has the rules of CUDA's order and events, `copy` says what copies and fills touch and `copying` when they
//! happen, `conditions` has the conditional nodes of graphs, `shared_event` the events of several processes. Called by
//! `api` and `kernels`; graphs are recorded by the crate `graphs`, and arrive here as executables.

pub mod conditions;
pub mod copy;
pub mod copying;
pub mod queue;
pub mod shared_event;
pub mod stream;
pub mod work;
