//! GPU memory: grants, mappings, and the clearing of memory that changes its owner.
//!
//! `slabs` holds the state, with `pieces` and `offers`. `granting` makes requests to the driver and the appliance.
//! `zeros`, `overwriting`, `freed`, `heirs`, `parting` and `sharing` make sure that no owner sees the bytes of another
//! one. `mirrors` replaces page-locked memory that kernels use in place, and `registering` takes memory that a client
//! on this machine shares. `session` and `moving` call this folder.

pub mod bounds;
pub mod client_memory;
pub mod freed;
pub mod granting;
pub mod heirs;
pub mod mapping;
pub mod mirrors;
pub mod offers;
pub mod overwriting;
pub mod parting;
pub mod pieces;
pub mod registering;
pub mod sharing;
pub mod slabs;
pub mod taken;
pub mod zeros;
