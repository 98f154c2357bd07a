//! Protection of tenants: the sandbox, the watchdog, and the names of the defences.
//!
//! `sandbox` gives up rights, and `watchdog` ends a worker whose client or appliance is gone. `main` calls this folder,
//! and so does code that checks whether a defence is enabled. This folder does not use sessions.

pub(crate) mod defences;
pub mod sandbox;
pub mod watchdog;
