//! Copies and fills: which way the bytes go, and when the program's memory is read or written.
//!
//! `peer` copies between GPUs of different appliances, through this process. Called by `abi`. The bytes themselves
//! travel by `session::copies`.

pub mod copy;
pub mod fill;
pub mod peer;
