//! Turns at a GPU: only the worker whose turn it is launches kernels.
//!
//! `arbiter` decides whose turn it is, and `gateway::turns` runs one for each GPU. A worker keeps what it knows of its turns
//! in `places`; `taking` is where its session asks.

pub mod arbiter;
mod estimates;
pub mod places;
pub mod taking;

use serde::{Deserialize, Serialize};

/// What a worker says, a packet each. `device` is the number that the GPU has in its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Said {
    /// It has something to launch.
    Want { device: u32 },
    /// What it launched in this turn is complete, and it launches nothing more in it. `more`: it wants another turn.
    Done { device: u32, turn: u64, more: bool },
}

/// What a worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Told {
    /// Who decides is new and knows nothing: no turn counts any more.
    Begin,
    /// It may launch. `sharers`: others may want the GPU, so that little must be queued.
    Turn { device: u32, turn: u64, sharers: bool },
    /// Others have come, or the last has gone.
    Sharers { device: u32, present: bool },
    /// It must launch nothing more in this turn.
    Yield { device: u32, turn: u64 },
    /// The turn was passed on although its work is not complete.
    Over { device: u32, turn: u64 },
}
