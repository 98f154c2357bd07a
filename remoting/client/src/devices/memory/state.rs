//! The state of one device's memory: its slabs, what the program freed, what is not in the heap, and the quota.

use super::heap::{Heap, Piece};
use crate::devices::context::Live;
use crate::devices::platform::Access;
use crate::devices::ticket::Token;
use crate::locks::{Guard, Ordered, Rank};
use crate::session::{Session, Slot};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Quota is requested, and kept unused, in about this amount.
pub(super) const SLACK: u64 = 32 << 20;
/// No more than this part of a share is kept: other processes may need it.
const MOST_KEPT: u64 = 64;

/// The owner of an allocation: its stream and its pool.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// The allocation's stream, if it is stream-ordered.
    pub stream_id: Option<u64>,
    /// The allocation's pool, or 0.
    pub pool: u64,
}

/// Pieces that the program freed, and the fence after which nothing uses them.
pub(super) struct Freed {
    pub(super) live: Arc<Live>,
    pub(super) stream_id: Option<u64>,
    pub(super) pieces: Vec<Piece>,
    /// Their sizes together.
    pub(super) bytes: u64,
    /// `None` until it was asked for.
    pub(super) fence: Option<Arc<Slot>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether the driver wants to know where allocations lie in slabs.
    pub(super) tells_bounds: bool,
    pub(super) heap: Heap,
    pub(super) granted: u64,
    /// Bytes that the program maps itself (virtual memory management), those of graphs, and those that the driver
    /// takes.
    pub(super) used_otherwise: u64,
    pub(super) reserved: Reserved,
    pub(super) shared: Shared,
    pub(super) freed: Vec<Freed>,
    /// Quota that comes back when a fence is passed.
    pub(super) leaving: Vec<Leaving>,
    pub(super) contexts: HashMap<u64, Arc<Live>>,
    /// Bytes that the program has of each pool.
    pub(super) pools: HashMap<u64, u64>,
}

pub struct DeviceMemory {
    /// The worker's number of the device.
    pub(super) index: u32,
    /// The amount that is kept unused, twice: as quota, and as slabs.
    pub(super) slack: u64,
    pub(super) state: Ordered<State>,
}

pub(super) type Held<'a> = Guard<'a, State>;

#[derive(Default)]
pub struct Reserved {
    /// A heap whose slabs are addresses only.
    pub(super) heap: Heap,
    /// The slabs of pieces that are backed, by the pieces' addresses.
    pub(super) backed: BTreeMap<u64, (u64, u64)>,
}

/// Memory that the device's driver gives back, and the fence after which it has done so.
pub struct Leaving {
    pub session: Arc<Session>,
    pub(super) bytes: u64,
    pub fence: Arc<Slot>,
    /// Set for a destroyed context: the program sees its memory free.
    pub(super) is_context: bool,
}

/// An allocation as another process of the lease finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub token: Token,
    pub slab_size: u64,
    /// The offset of the allocation in the slab.
    pub offset: u64,
    pub size: u64,
}

#[derive(Default)]
pub struct Shared {
    /// The exported slabs by address.
    pub(super) exported: BTreeMap<u64, (u64, Token)>,
    pub(super) imported: BTreeMap<u64, Imported>,
}

pub(super) struct Imported {
    pub(super) size: u64,
    pub(super) token: Token,
    pub(super) live: Arc<Live>,
    /// The context's access to the device that has the slab, if that is another one.
    pub(super) _access: Option<Access>,
    /// Its open allocations by address, and how often each is open.
    pub(super) open: BTreeMap<u64, (Piece, u32)>,
}

impl DeviceMemory {
    /// `bytes`: the share's size. `tells_bounds`: whether the driver wants to know where allocations lie.
    pub fn new(index: u32, bytes: u64, tells_bounds: bool) -> Self {
        let state = Ordered::new(Rank::DeviceMemory, State { tells_bounds, ..State::default() });
        DeviceMemory { index, slack: SLACK.min(bytes / MOST_KEPT), state }
    }
}
