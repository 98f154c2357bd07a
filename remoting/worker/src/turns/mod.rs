//! Turns at a GPU: only the worker that has the turn launches kernels.
//!
//! `arbiter` decides who gets the turn, and `gateway::turns` runs an arbiter for each GPU. `places` is a worker's state
//! of its turns, and `asking` has the socket to the gateway. A session uses turns in `order::turns`.

pub mod arbiter;
pub mod asking;
mod estimates;
pub mod places;
