//! Limits on unauthenticated connections: their places (`probation`, `crowd`), their time, and their bytes (`ration`).
//! `limits` has the values.
//!
//! Both ports use this folder, so that peers, one or many, cannot lock others out. It does not interpret the bytes of a
//! connection.

mod crowd;
pub mod limits;
pub mod probation;
pub mod ration;
