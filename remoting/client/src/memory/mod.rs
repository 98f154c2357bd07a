//! Memory of the host that devices use, and memory that the program places itself.
//!
//! `host` knows the program's page-locked memory, `pinned` finds the part that kernels get, `mapped` (with `granules`
//! and `changes`) mirrors that within a `budget`; `managed` and `variables` are mirrored, too. `vmm` maps physical
//! memory where the program wants it. `taken` charges what the device's driver takes by itself. Memory that the program
//! allocates on a device is in `devices::memory`. Called by `objects`, `copies`, `launch` and `abi`.

mod budget;
mod changes;
mod granules;
pub mod host;
pub mod managed;
pub mod mapped;
pub mod pinned;
pub mod taken;
pub mod variables;
pub mod vmm;
