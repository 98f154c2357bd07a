//! The worker: executes the commands of one session on a libcuda that it loads by path. Also the gateway, a separate
//! program that hands data connections to workers.
//!
//! `session` takes frames and hands them to `driver`, in the order that `order` keeps. Commands act on `memory`,
//! `copying` and `code`; `moving` suspends a session or recreates it at another worker; `io` is the connection; `guard`
//! protects tenants; `turns` shares a GPU's time among workers.
//!
//! The state of each part lies in files below `session::commands::Session`, which has them all; what acts on the
//! session lies in files above it.

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
