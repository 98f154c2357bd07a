//! GPU memory: what was granted, what is mapped where, and what happens to it when it is given back.
//!
//! `slabs` keeps the books, with `pieces` and `offers`; `granting` asks driver and appliance; `zeros`, `overwriting`,
//! `freed`, `heirs`, `parting` and `sharing` control who sees which bytes when memory changes hands. `mirrors` stands
//! for page-locked memory that kernels use in place; `registering` takes the memory that a client on this machine
//! shares. Called by `session` and `moving`.

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
