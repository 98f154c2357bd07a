//! The devices that the program sees, the contexts on them, and the program's memory there.
//!
//! `platform` finds the devices of all shares, and opens the session of each appliance; `context` has what lives as long
//! as a context; `answers` spares questions to a driver. `handles` are the tables behind the program's handles, and
//! `ticket` is what processes of a lease give each other. Called by `memory`, `objects`, `module` and all above. No file
//! here knows of streams, modules or graphs.

pub mod answers;
pub mod context;
pub mod handles;
pub mod memory;
mod platform;
pub mod target;
pub mod ticket;

pub use platform::{Access, Device, LaunchLimits, all, driver_version, get, initialise, unreachable_device};
