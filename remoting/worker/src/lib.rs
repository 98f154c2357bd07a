//! The worker: executes the commands of one session on a libcuda that it loads by path. And the gateway, a program of its own
//! that hands data connections to workers.
//!
//! `session` takes frames and hands them to `driver`, in the order that `order` keeps. `memory`, `copying` and `code` are
//! what commands act on, `moving` suspends a session or makes it anew elsewhere, `io` is the connection, `guard` is what
//! keeps tenants from harm, and `turns` is how workers share a GPU's time.

pub mod code;
mod copying;
pub mod driver;
pub mod gateway;
#[rustfmt::skip]
pub mod generated;
pub mod guard;
pub mod io;
mod memory;
mod moving;
pub mod order;
pub mod session;
pub mod turns;
