//! The base of the driver: settings, devices, handles, and the signals of the process.
//!
//! `config` reads the settings from the environment once. `model` is the GPU model that a device reports, and `handles`
//! has the tables of objects. All modules above `check` use this module. It does not use memory or streams.

pub mod config;
pub mod device;
pub mod handles;
pub mod model;
pub mod signals;
