//! The memory that is watched, by address, and where its shadow is: two addresses of the same memory share one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError, RwLock};

/// The start of the shadows of physical memory, beyond all addresses, and the distance between two of them.
const PHYSICAL: u64 = 1 << 62;
const APART: u64 = 1 << 46;

#[derive(Default)]
pub struct Ranges {
    /// By base: length and the shadow's address.
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

    /// Returns the shadow's address of an address, if it is watched.
    pub fn key(&self, address: u64) -> Option<u64> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, &(len, key)) = all.range(..=address).next_back()?;
        (address - base < len).then(|| key + (address - base))
    }

    /// Returns the start of the shadow of a piece of physical memory.
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
