//! Turns at a GPU: only the worker whose turn it is launches kernels.
//!
//! `arbiter` decides whose turn it is, and `gateway::turns` runs one for each GPU. `places` is a worker's state of its
//! turns, and `asking` has the socket to the gateway. A session asks in `order::turns`.

pub mod arbiter;
pub mod asking;
mod estimates;
pub mod places;
