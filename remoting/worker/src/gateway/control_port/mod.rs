//! The control port: `service` passes calls to the appliance's control service, and `connections` has the open
//! connections.
//!
//! `serving` starts this port. This folder does not interpret the calls.

pub mod connections;
pub mod service;
