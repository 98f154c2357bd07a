//! Copies and fills: their direction, and the time at which the program's memory is read or written.
//!
//! `peer` copies between GPUs of different appliances, through this process. The caller is `abi`. `session::copies`
//! transfers the bytes.

pub mod copy;
pub mod fill;
pub mod peer;
