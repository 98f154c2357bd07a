//! The state of one device's memory: its slabs, freed pieces, memory outside the heap, and the quota.

use super::heap::{Heap, Piece};
use crate::devices::context::Live;
use crate::devices::platform::Access;
use crate::devices::ticket::Token;
use crate::locks::{Guard, Ordered, Rank};
use crate::session::{Session, Slot};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The minimum amount of quota to request, in bytes, and the maximum slack.
pub(super) const SLACK: u64 = 32 << 20;
/// The size of a share divided by its maximum slack. Other processes may need the memory, so the slack must be small.
const MOST_KEPT: u64 = 64;

/// The stream and the pool of an allocation.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// The allocation's stream, if it is stream-ordered.
    pub stream_id: Option<u64>,
    /// The allocation's pool, or 0.
    pub pool: u64,
}

/// Freed pieces of one stream or context, and the fence after which no work uses them.
pub(super) struct Freed {
    pub(super) live: Arc<Live>,
    pub(super) stream_id: Option<u64>,
    pub(super) pieces: Vec<Piece>,
    /// The sum of the pieces' sizes.
    pub(super) bytes: u64,
    /// The fence, or `None` before one was sent.
    pub(super) fence: Option<Arc<Slot>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether the driver checks accesses and needs the bounds of allocations.
    pub(super) tells_bounds: bool,
    pub(super) heap: Heap,
    pub(super) granted: u64,
    /// The number of bytes outside the heap: those that the program maps itself (virtual memory management), those of
    /// graphs and those that the driver takes.
    pub(super) used_otherwise: u64,
    pub(super) reserved: Reserved,
    pub(super) shared: Shared,
    pub(super) freed: Vec<Freed>,
    /// Quota that is returned when a fence is finished.
    pub(super) leaving: Vec<Leaving>,
    pub(super) contexts: HashMap<u64, Arc<Live>>,
    /// The number of bytes that the program has allocated from each pool.
    pub(super) pools: HashMap<u64, u64>,
}

pub struct DeviceMemory {
    /// The worker's index of the device.
    pub(super) index: u32,
    /// The number of unused bytes that are kept as quota, and also as slabs.
    pub(super) slack: u64,
    pub(super) state: Ordered<State>,
}

pub(super) type Held<'a> = Guard<'a, State>;

#[derive(Default)]
pub struct Reserved {
    /// A heap of addresses. Its slabs have no memory of their own.
    pub(super) heap: Heap,
    /// The address and size of the slab of each backed piece, by the piece's address.
    pub(super) backed: BTreeMap<u64, (u64, u64)>,
}

/// Memory that the driver is freeing, and the fence after which it is free.
pub struct Leaving {
    pub session: Arc<Session>,
    pub(super) bytes: u64,
    pub fence: Arc<Slot>,
    /// Set for the memory of a destroyed context, which the program already sees as free.
    pub(super) is_context: bool,
}

/// The description of an exported allocation, with which another process of the lease can import it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub token: Token,
    pub slab_size: u64,
    /// The offset in bytes of the allocation in the slab.
    pub offset: u64,
    pub size: u64,
}

#[derive(Default)]
pub struct Shared {
    /// The size and token of each exported slab, by its address.
    pub(super) exported: BTreeMap<u64, (u64, Token)>,
    pub(super) imported: BTreeMap<u64, Imported>,
}

pub(super) struct Imported {
    pub(super) size: u64,
    pub(super) token: Token,
    pub(super) live: Arc<Live>,
    /// The context's access to the slab's device, if that is another device.
    pub(super) _access: Option<Access>,
    /// The open allocations by address, and how often each is open.
    pub(super) open: BTreeMap<u64, (Piece, u32)>,
}

impl DeviceMemory {
    /// Returns the state of a device whose share has `bytes` bytes. `tells_bounds` is set if the driver needs the
    /// bounds of allocations.
    pub fn new(index: u32, bytes: u64, tells_bounds: bool) -> Self {
        let state = Ordered::new(Rank::DeviceMemory, State { tells_bounds, ..State::default() });
        DeviceMemory { index, slack: SLACK.min(bytes / MOST_KEPT), state }
    }
}
