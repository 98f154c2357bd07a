//! Limits on unauthenticated connections: places (`probation`, `crowd`), time, and bytes (`ration`); `limits` has the
//! numbers.
//!
//! One peer, or many, must not lock others out. It knows nothing of what a connection carries.

mod crowd;
pub mod limits;
pub mod probation;
pub mod ration;
