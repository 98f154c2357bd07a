//! What unauthenticated connections may take: places (`probation`, `crowd`), time, and bytes (`ration`), within
//! `limits`.
//!
//! One peer, or many, must not lock others out. It knows nothing of what a connection carries.

mod crowd;
pub mod limits;
pub mod probation;
pub mod ration;
