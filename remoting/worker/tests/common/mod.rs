#![allow(dead_code, reason = "every test uses a part of these")]

pub mod client;
pub mod fake;
pub mod session;
pub mod worker;
