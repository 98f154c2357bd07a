//! Mirrors: device memory of which the client has a copy. The worker stores the client's state of each mirror
//! (`known`), so that it sends only bytes that the device has changed since. `reading` reads mirrors from the GPU.
//!
//! `plan` computes how to read mirrors with few copies (pure). `session::commands` calls this folder. The client
//! manages the program's own memory (`client/src/memory/mapped`).

mod known;
pub mod plan;
mod reading;

pub use known::{Mirrors, Told};
