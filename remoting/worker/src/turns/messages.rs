//! Messages about turns between a worker and the gateway.

use serde::{Deserialize, Serialize};

/// Messages of a worker, one per packet. `device` is the number of the GPU in its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Said {
    /// It has something to launch.
    Want { device: u32 },
    /// Its launches of this turn are complete, and it launches nothing more in it. `more`: it wants another turn.
    Done { device: u32, turn: u64, more: bool },
}

/// Messages to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Told {
    /// The arbiter is new and knows nothing: no earlier turn is valid.
    Begin,
    /// It may launch. `sharers`: others may want the GPU, so it must queue little.
    Turn { device: u32, turn: u64, sharers: bool },
    /// Others have come, or the last one has gone.
    Sharers { device: u32, present: bool },
    /// It must launch nothing more in this turn.
    Yield { device: u32, turn: u64 },
    /// The turn was passed on although its work is not complete.
    Over { device: u32, turn: u64 },
}
