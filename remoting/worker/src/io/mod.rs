//! The client's connection: `frames` splits incoming bytes, `writer` queues outgoing frames, `connection` replaces a
//! broken connection, `packets` come from appliance and gateway, and `text` captures the output of kernels.
//!
//! Called by `session::server`. It knows no command.

pub mod connection;
pub mod frames;
pub mod packets;
pub mod text;
pub(crate) mod writer;
