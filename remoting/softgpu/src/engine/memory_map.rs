//! The ranges of device memory that a kernel may access.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// The valid ranges of device memory. A clone refers to the same map.
///
/// While a kernel runs, the memory behind a range stays mapped, readable and writable, even after the range is removed.
/// Removal only makes later accesses illegal. A checked access can therefore be a plain load or store.
#[derive(Clone, Default)]
pub struct MemoryMap {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    ranges: RwLock<BTreeMap<u64, Range>>,
    /// A counter of removals. When it changes, a warp must look up again a range that it has remembered.
    generation: AtomicU64,
}

struct Range {
    len: u64,
    /// The length of each valid part, by address. If it is `None`, the whole range is valid.
    parts: Option<BTreeMap<u64, u64>>,
}

impl Range {
    fn part(&self, base: u64, addr: u64) -> Option<(u64, u64)> {
        match &self.parts {
            None => Some((base, self.len)),
            Some(parts) => parts.range(..=addr).next_back().map(|(&at, &len)| (at, len)),
        }
    }
}

impl MemoryMap {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `[base, base + len)` valid. It must not overlap another range.
    pub fn insert(&self, base: u64, len: u64) {
        self.write().insert(base, Range { len, parts: None });
    }

    /// Makes the range that starts at `base` invalid. Returns its length in bytes.
    pub fn remove(&self, base: u64) -> Option<u64> {
        let removed = self.write().remove(&base);
        self.changed();
        removed.map(|range| range.len)
    }

    /// Makes a part of a range valid. From the first call on, only such parts of the range are valid. If `len` is 0,
    /// the part that starts at `at` becomes invalid. Returns whether a range contains `at`. Parts must not overlap.
    pub fn bound(&self, at: u64, len: u64) -> bool {
        let mut ranges = self.write();
        let Some((_, range)) = ranges.range_mut(..=at).next_back().filter(|(base, range)| at - **base < range.len)
        else {
            return false;
        };
        let divides = range.parts.is_none();
        let parts = range.parts.get_or_insert_default();
        let before = if len == 0 { parts.remove(&at) } else { parts.insert(at, len) };
        let narrows = divides || before.is_some_and(|before| before > len);
        drop(ranges);
        if narrows {
            self.changed();
        }
        true
    }

    /// Returns the base and length of the range that contains `addr`. If the range has parts, returns the part.
    pub fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let ranges = self.inner.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, range) = ranges.range(..=addr).next_back()?;
        range.part(base, addr).filter(|(base, len)| addr - base < *len)
    }

    /// Whether a range contains `addr`, in a valid part or not.
    pub fn covers(&self, addr: u64) -> bool {
        let ranges = self.inner.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..=addr).next_back().is_some_and(|(base, range)| addr - base < range.len)
    }

    /// Whether `[addr, addr + len)` is inside one valid range or part.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.find(addr).is_some_and(|(base, size)| len <= size - (addr - base))
    }

    /// Returns a number that changes whenever a range is removed.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.inner.generation.fetch_add(1, Ordering::Release);
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.inner.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryMap;

    #[test]
    fn a_range_is_whole_until_its_parts_are_told() {
        let map = MemoryMap::new();
        map.insert(0x1000, 0x1000);
        assert!(map.contains(0x1000, 0x1000));
        let before = map.generation();
        assert!(map.bound(0x1200, 100));
        assert_ne!(map.generation(), before);
        assert_eq!(map.find(0x1263), Some((0x1200, 100)));
        assert_eq!((map.find(0x1264), map.find(0x1000)), (None, None));
        assert!(map.covers(0x1264) && map.covers(0x1000) && !map.covers(0x2000));
        assert!(map.bound(0x1200, 0));
        assert_eq!(map.find(0x1200), None);
        assert!(!map.bound(0x2000, 1));
    }
}
