//! The control port: `service` passes calls to the appliance's control service, and `connections` has the open
//! connections. `calls` limits the open calls of unauthenticated ones.
//!
//! `serving` starts this port. Of the calls this folder interprets where each begins and ends.

mod calls;
pub mod connections;
pub mod service;
