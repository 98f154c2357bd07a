//! The arena: the range of device addresses that client and worker agreed on.

use super::ranges::Ranges;
use super::wait::lock;
use protocol::Opened;
use std::sync::{Mutex, OnceLock};

#[derive(Default)]
pub struct Arena {
    base: u64,
    size: u64,
    granularity: u64,
    /// Whether this process has reserved the range. If so, no host memory of this process lies in the range.
    reserved: bool,
    free: Mutex<Ranges>,
    /// The upper part of the arena, for page-locked memory of the program. Set at its first use.
    pinned: OnceLock<Option<Pinned>>,
}

/// Addresses for page-locked memory. This process backs them with pages, and the device backs them with a mirror if a
/// kernel needs one. They are apart from other addresses, so that an address alone tells whether it is page-locked.
struct Pinned {
    base: u64,
    size: u64,
    free: Mutex<Ranges>,
}

/// The size of the arena divided by the size of its part for page-locked memory.
const PINNED_PART: u64 = 8;

impl Arena {
    pub fn new(opened: &Opened, reserved: bool) -> Self {
        let mut free = Ranges::new();
        free.insert(opened.arena_base, opened.arena_size, (0, u64::MAX));
        Arena {
            base: opened.arena_base,
            size: opened.arena_size,
            granularity: opened.granularity.max(1),
            reserved,
            free: Mutex::new(free),
            pinned: OnceLock::new(),
        }
    }

    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.size
    }

    pub fn is_reserved(&self) -> bool {
        self.reserved
    }

    /// Returns the unit in bytes in which the worker maps memory.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Takes a free range of `size` bytes, a multiple of the granularity. Returns its start, or `None` without room.
    pub fn take(&self, size: u64, align: u64) -> Option<u64> {
        lock(&self.free).take(size, align.max(self.granularity))
    }

    /// Takes the range at `address`. Returns whether the range was free.
    pub fn take_at(&self, address: u64, size: u64) -> bool {
        lock(&self.free).take_at(address, size)
    }

    pub fn put_back(&self, address: u64, size: u64) {
        lock(&self.free).insert(address, size, (0, u64::MAX));
    }

    fn pinned(&self) -> Option<&Pinned> {
        let reserve = || {
            let size = self.size / PINNED_PART / self.granularity * self.granularity;
            let base = self.base + self.size - size;
            let mut free = Ranges::new();
            free.insert(base, size, (0, u64::MAX));
            let taken = self.reserved && self.take_at(base, size);
            taken.then(|| Pinned { base, size, free: Mutex::new(free) })
        };
        self.pinned.get_or_init(reserve).as_ref()
    }

    /// Takes a free range for page-locked memory. Returns its start, or `None` without room.
    pub fn take_pinned(&self, size: u64, align: u64) -> Option<u64> {
        lock(&self.pinned()?.free).take(size, align)
    }

    pub fn put_back_pinned(&self, address: u64, size: u64) {
        if let Some(pinned) = self.pinned() {
            lock(&pinned.free).insert(address, size, (0, u64::MAX));
        }
    }

    /// Returns whether the address lies in the part for page-locked memory.
    pub fn is_pinned(&self, address: u64) -> bool {
        let pinned = self.pinned.get().and_then(Option::as_ref);
        pinned.is_some_and(|pinned| address.wrapping_sub(pinned.base) < pinned.size)
    }
}
