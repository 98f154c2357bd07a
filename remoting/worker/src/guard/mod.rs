//! What keeps tenants and strangers from harm: the sandbox, the watchdog, and the names of the defences.
//!
//! Called by `main`, and by who asks whether a defence stands. It knows nothing of sessions.

pub(crate) mod defences;
pub mod sandbox;
pub mod watchdog;
