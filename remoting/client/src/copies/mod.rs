//! Copies and fills: which way the bytes go, and when the program's memory is read or written.
//!
//! `peer` is what goes between GPUs of different appliances, by way of this process. Called by `abi`. The bytes themselves
//! travel by `session::copies`.

pub mod copy;
pub mod fill;
pub mod peer;
