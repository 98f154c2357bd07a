//! Mirrors: device memory of which the client has a copy. The worker keeps the client's state of each (`known`), so
//! that it sends only bytes that the device has changed since. `reading` reads mirrors on the GPU.
//!
//! `plan` computes how mirrors are read with few copies (pure). Called by `session::commands`. The program's own memory
//! is the client's business (`client/src/memory/mapped`).

mod known;
pub mod plan;
mod reading;

pub use known::{Mirrors, Told};
