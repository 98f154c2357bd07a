//! Packets of the control sockets between appliance, gateway and worker: JSON objects, generated from
//! `registry/packets.yaml`. `token` names exports in them.
//!
//! Both ends of such a socket use it. It knows no session, and does no I/O.

#[rustfmt::skip]
mod generated;
mod token;

pub use generated::{GatewayEvent, GatewayOrder, LeasePart, Order, Passed, Request, Said, Told, UsedTime};
pub use token::Token;
