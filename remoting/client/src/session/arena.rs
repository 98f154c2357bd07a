//! The range of device addresses that client and worker agreed on.

use super::lock;
use crate::memory::Ranges;
use protocol::Opened;
use std::sync::Mutex;

#[derive(Default)]
pub struct Arena {
    base: u64,
    size: u64,
    granularity: u64,
    /// Nothing else of this process can lie in it.
    reserved: bool,
    free: Mutex<Ranges>,
}

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
}
