//! Memory on offer to other processes of the lease, and memory that came from them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Limit on how much larger the memory may be than asked for: as much as a process is granted in advance.
pub const SLACK: u64 = 64 << 20;

/// Memory that another process of the lease had.
#[derive(Debug)]
pub struct Inherited {
    pub device: u32,
    pub size: u64,
    /// Whether its previous owner has overwritten it.
    pub zeroed: bool,
    pub file: OwnedFd,
}

/// State of the offer that an ending session makes of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// No process has asked.
    Open,
    /// The appliance has the descriptor of the slab at this address; whether the heir has received it is not known yet.
    Handed(u64),
    /// A process wants memory that this session does not have, or the appliance ends the session: all memory is
    /// overwritten at once.
    Over,
}

/// Progress of the offer of freed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A helper overwrites and unmaps it.
    Unmapping,
    OpenUntil(Instant),
    /// The appliance has its descriptor; whether the heir has received it is not known yet.
    Handed,
}

/// Memory that was returned, and is offered for a short time.
#[derive(Debug)]
pub struct Freed {
    pub device: u32,
    pub size: u64,
    pub memory: u64,
    /// Whether a helper has overwritten it.
    pub zeroed: Arc<AtomicBool>,
    pub stage: Stage,
}

impl Freed {
    pub fn is_unmapping(&self) -> bool {
        self.stage == Stage::Unmapping
    }
}
