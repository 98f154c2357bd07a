//! Host memory that devices use, and device memory that the program maps itself.
//!
//! `host` records the program's page-locked memory, and `pinned` finds the ranges that a kernel gets. `mapped` (with
//! `granules` and `changes`) mirrors them within a `budget`. `managed` and `variables` are mirrored, too. `vmm` maps
//! physical memory at addresses that the program chooses. `taken` charges the share for memory that the device's driver
//! takes. Memory that the program allocates on a device is in `devices::memory`. The callers are `objects`, `copies`,
//! `launch` and `abi`.

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
