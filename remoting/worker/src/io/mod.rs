//! Input and output of the worker. `frames` splits incoming bytes, `writer` queues outgoing frames, and `connection`
//! replaces a broken connection. `packets` receives packets from the appliance and the gateway, and `text` captures the
//! output of kernels.
//!
//! `session::server` calls this folder. It does not interpret commands.

pub mod connection;
pub mod frames;
pub mod packets;
pub mod text;
pub(crate) mod writer;
