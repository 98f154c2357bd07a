//! The driver in this process: its life, its devices and contexts, and the tables of all that has a handle.
//!
//! `config` holds the environment's settings, read once; `model` is the GPU that a device shows itself to be.
//! Everything reaches the tables through `driver`. Called by `api` and `nvml`, which hold nothing themselves.

pub mod config;
pub mod context;
pub mod device;
pub mod driver;
pub mod handles;
pub mod model;
pub mod signals;
