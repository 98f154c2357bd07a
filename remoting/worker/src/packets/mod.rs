//! The packets of the control sockets between appliance, gateway and worker. They are JSON objects, generated from
//! `registry/packets.yaml`. `token` contains the names of exports in these packets.
//!
//! Worker and gateway both use this folder, which does no I/O.

#[rustfmt::skip]
mod generated;
mod token;

pub use generated::{GatewayEvent, GatewayOrder, LeasePart, Order, Passed, Request, Said, Told, UsedTime};
pub use token::Token;
