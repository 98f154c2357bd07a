//! The range of device addresses that client and worker agreed on.

use super::ranges::Ranges;
use super::wait::lock;
use protocol::Opened;
use std::sync::{Mutex, OnceLock};

#[derive(Default)]
pub struct Arena {
    base: u64,
    size: u64,
    granularity: u64,
    /// Whether it is reserved: nothing else of this process can lie in it.
    reserved: bool,
    free: Mutex<Ranges>,
    /// The end of the arena, once page-locked memory of the program lies there.
    pinned: OnceLock<Option<Pinned>>,
}

/// Addresses of page-locked memory that this process backs with pages, and the device with a mirror where a kernel
/// needs it. They lie apart, so that a look at an address says that it is none of them.
struct Pinned {
    base: u64,
    size: u64,
    free: Mutex<Ranges>,
}

/// The part of the arena for page-locked memory.
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

    /// The unit in which the worker maps memory.
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Takes addresses for `size` bytes, a multiple of the granularity.
    pub fn take(&self, size: u64, align: u64) -> Option<u64> {
        lock(&self.free).take(size, align.max(self.granularity))
    }

    /// Takes these very addresses, if nothing has them.
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

    /// Takes addresses for page-locked memory of the program.
    pub fn take_pinned(&self, size: u64, align: u64) -> Option<u64> {
        lock(&self.pinned()?.free).take(size, align)
    }

    pub fn put_back_pinned(&self, address: u64, size: u64) {
        if let Some(pinned) = self.pinned() {
            lock(&pinned.free).insert(address, size, (0, u64::MAX));
        }
    }

    /// Whether [`Arena::take_pinned`] gave this address.
    pub fn is_pinned(&self, address: u64) -> bool {
        let pinned = self.pinned.get().and_then(Option::as_ref);
        pinned.is_some_and(|pinned| address.wrapping_sub(pinned.base) < pinned.size)
    }
}
