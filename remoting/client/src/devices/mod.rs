//! The devices that the program sees, the contexts on them, and the program's memory there.
//!
//! `platform` finds the devices of all shares, and opens the session of each appliance. `context` has the contexts and
//! the state that ends with them. `answers` caches answers of a driver. `handles` has the tables for the program's
//! handles. `ticket` defines the bytes by which processes of a lease name shared objects to each other. The callers are
//! `memory`, `objects`, `module` and all higher layers. No file of this folder uses streams, modules or graphs.

pub mod answers;
pub mod context;
pub mod handles;
pub mod memory;
mod platform;
pub mod target;
pub mod ticket;

pub use platform::{
    Access, Device, LaunchLimits, all, driver_version, get, initialise, unreachable_device, unused_memory,
};
