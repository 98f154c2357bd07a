//! The client's connection: bytes in to `frames`, frames out by `writer`, connections that replace broken ones, and what
//! kernels print.
//!
//! Called by `session::server`. It knows no command.

pub mod connection;
pub mod frames;
pub mod text;
pub(crate) mod writer;
