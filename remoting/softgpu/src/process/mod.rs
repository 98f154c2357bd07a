//! What a process finds before it makes anything: its settings, its devices, and the system's signals.
//!
//! `config` holds the environment's settings, read once; `model` is the GPU that a device shows itself to be, and
//! `handles` the tables of numbers that stand for objects. Used by all that is above `check`. It knows neither memory
//! nor streams.

pub mod config;
pub mod device;
pub mod handles;
pub mod model;
pub mod signals;
