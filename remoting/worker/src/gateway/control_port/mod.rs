//! The control port: `service` passes calls to the appliance's control service, and `connections` are those that are
//! open. It does not know what the calls mean.

pub mod connections;
pub mod service;
