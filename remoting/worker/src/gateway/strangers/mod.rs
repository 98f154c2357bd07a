//! Limits of unauthenticated connections: places (`probation`, `crowd`), time, and bytes (`ration`), within `limits`.
//!
//! Both ports use it, so that one peer, or many, cannot lock others out.
//! It knows nothing of what a connection carries.

mod crowd;
pub mod limits;
pub mod probation;
pub mod ration;
