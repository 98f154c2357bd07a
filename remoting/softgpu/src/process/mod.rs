//! The ground of the driver: the settings, the devices, and the signals of the process.
//!
//! `config` holds the environment's settings, read once; `model` is the GPU that a device shows itself to be, and
//! `handles` the tables of numbers that stand for objects. Used by all that is above `check`. It knows neither memory
//! nor streams.

pub mod config;
pub mod device;
pub mod handles;
pub mod model;
pub mod signals;
