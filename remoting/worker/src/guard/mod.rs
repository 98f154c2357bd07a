//! Protection of tenants: the sandbox, the watchdog, and the names of the defences.
//!
//! `sandbox` gives up rights, `watchdog` ends a worker whose client or appliance is gone. Called by `main`, and by code
//! that checks whether a defence is in place. It knows nothing of sessions.

pub(crate) mod defences;
pub mod sandbox;
pub mod watchdog;
