//! NVML for the program: it shows the devices of its shares, with the share's memory and the lease's processes only.
//!
//! Fixed values come from the appliances' `Hello`; changing ones are requested when the program asks for them. No
//! session is opened and nothing is taken from a share. As with a local GPU, `CUDA_VISIBLE_DEVICES` hides nothing here.
//!
//! `exports_*` hold the functions, thin; `library` what they act on. Functions of nvml.h that are not here are
//! generated from the registry and answer `NVML_ERROR_NOT_SUPPORTED`, which tools show as "N/A".

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
