//! Memory that the session offers to other processes of the lease, and memory that it received from them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Limit in bytes on how much larger the offered memory may be than the requested size. It equals the memory that a
/// process is granted in advance.
pub const SLACK: u64 = 64 << 20;

/// Memory that belonged to another process of the lease.
#[derive(Debug)]
pub struct Inherited {
    pub device: u32,
    pub size: u64,
    /// Whether the previous owner has overwritten the memory.
    pub zeroed: bool,
    pub file: OwnedFd,
}

/// The state of the offer that an ending session makes of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// No process has asked.
    Open,
    /// The appliance has the descriptor of the slab at this address, and has not answered whether the other process
    /// received it.
    Handed(u64),
    /// The offer has ended, because a process wants memory that this session does not have, or the appliance ends the
    /// session. All memory is overwritten at once.
    Over,
}

/// The state of an offer of freed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A helper is overwriting and unmapping the memory.
    Unmapping,
    OpenUntil(Instant),
    /// The appliance has the descriptor of the memory, and has not answered whether the other process received it.
    Handed,
}

/// Memory that the program has freed, and that is offered for a short time.
#[derive(Debug)]
pub struct Freed {
    pub device: u32,
    pub size: u64,
    pub memory: u64,
    /// Whether a helper has overwritten the memory.
    pub zeroed: Arc<AtomicBool>,
    pub stage: Stage,
}

impl Freed {
    pub fn is_unmapping(&self) -> bool {
        self.stage == Stage::Unmapping
    }
}
