//! The watched address ranges, and the address of the shadow of each. Two mappings of the same memory share one shadow.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError, RwLock};

/// The first shadow address of physical memory, which is above all memory addresses. `APART` is the distance between
/// two shadows.
const PHYSICAL: u64 = 1 << 62;
const APART: u64 = 1 << 46;

#[derive(Default)]
pub struct Ranges {
    /// The length and the shadow address of each range, by base address.
    all: RwLock<BTreeMap<u64, (u64, u64)>>,
    physical: Mutex<HashMap<usize, u64>>,
}

impl Ranges {
    pub fn insert(&self, base: u64, len: u64, key: u64) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).insert(base, (len, key));
    }

    pub fn remove(&self, base: u64) -> Option<(u64, u64)> {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(&base)
    }

    /// Returns the shadow address of a memory address, or `None` if it is not watched.
    pub fn key(&self, address: u64) -> Option<u64> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, &(len, key)) = all.range(..=address).next_back()?;
        (address - base < len).then(|| key + (address - base))
    }

    /// Returns the first shadow address of a piece of physical memory.
    pub fn physical(&self, handle: usize) -> u64 {
        let mut all = self.physical.lock().unwrap_or_else(PoisonError::into_inner);
        let next = PHYSICAL + all.len() as u64 % (1 << 15) * APART;
        *all.entry(handle).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_of_the_same_memory_have_one_shadow() {
        let ranges = Ranges::default();
        let start = ranges.physical(7);
        ranges.insert(0x1000, 0x1000, start);
        ranges.insert(0x9000, 0x800, start + 0x800);
        assert_eq!(ranges.key(0x1810), ranges.key(0x9010));
        assert_ne!(ranges.physical(8), start);
        assert_eq!([ranges.key(0xfff), ranges.key(0x2000), ranges.key(0x9800)], [None; 3]);
    }
}
