//! NVML for the program. It shows only the devices of its shares, with the share's memory and the lease's processes.
//!
//! Fixed values come from the appliances' `Hello`. Changing values are requested when the program reads them. No
//! session is opened and nothing is taken from a share. As with a local GPU, `CUDA_VISIBLE_DEVICES` has no effect on
//! NVML.
//!
//! `exports_*` have the functions, and `library` the devices. Other functions of nvml.h are generated from the registry
//! and return `NVML_ERROR_NOT_SUPPORTED`, which tools show as "N/A".

mod exports_device;
mod exports_links;
mod exports_process;
mod exports_state;
mod exports_system;
mod guard;
mod library;
mod memo;
mod text;

pub use guard::guard;
