//! Turns at a GPU: only the worker whose turn it is launches kernels.
//!
//! `arbiter` decides whose turn it is, and `gateway::turns` runs one for each GPU. `places` is a worker's state of its
//! turns, `asking` has the socket to the gateway, and `taking` is where a session asks.

pub mod arbiter;
pub mod asking;
mod estimates;
pub mod places;
pub mod taking;
