//! The worker executes the commands of one session on a libcuda that it loads by path. This crate also contains the
//! gateway, a separate program that hands data connections to workers.
//!
//! `session` takes frames and gives them to `driver`, in the order that `order` determines. Commands act on `memory`,
//! `copying` and `code`. `moving` suspends a session or recreates it at another worker. `io` is the connection, `guard`
//! protects tenants, `turns` shares a GPU's time among workers, and `packets` has the packets of the control sockets.

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
pub mod packets;
pub mod session;
pub mod turns;
