//! The control port: `service` passes calls to the appliance's control service, and `connections` are those that are
//! open. The appliance says which of them a call has authenticated.
//!
//! Called by `listen` and `acceptors`. It does not know what the calls mean.

pub mod connections;
pub mod service;
