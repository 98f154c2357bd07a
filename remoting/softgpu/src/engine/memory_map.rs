//! The ranges of device memory a kernel may touch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// Valid device ranges. Cloning gives another handle to the same map.
///
/// The memory behind a range stays mapped, readable and writable, while any kernel runs: removal only makes later accesses
/// illegal. That is what lets a checked access be a plain load or store.
#[derive(Clone, Default)]
pub struct MemoryMap {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    ranges: RwLock<BTreeMap<u64, Range>>,
    /// Bumped on every removal, so that a warp knows when the range it remembers may have gone.
    generation: AtomicU64,
}

struct Range {
    len: u64,
    /// The parts that are valid, by address; all of it without them.
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

    /// Makes `[base, base + len)` valid. Ranges must not overlap.
    pub fn insert(&self, base: u64, len: u64) {
        self.write().insert(base, Range { len, parts: None });
    }

    /// Makes the range that starts at `base` invalid and returns its length.
    pub fn remove(&self, base: u64) -> Option<u64> {
        let removed = self.write().remove(&base);
        self.changed();
        removed.map(|range| range.len)
    }

    /// From now on only the parts of the range at `at` are valid that are told here; with `len` 0 the part that starts at
    /// `at` is so no more. Says whether there is such a range. Parts must not overlap.
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

    /// The range `(base, len)` that holds `addr`, or the part of it that does.
    pub fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let ranges = self.inner.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, range) = ranges.range(..=addr).next_back()?;
        range.part(base, addr).filter(|(base, len)| addr - base < *len)
    }

    /// Whether a range holds `addr`, be it in one of its parts or not.
    pub fn covers(&self, addr: u64) -> bool {
        let ranges = self.inner.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..=addr).next_back().is_some_and(|(base, range)| addr - base < range.len)
    }

    /// Whether `[addr, addr + len)` lies inside one range.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.find(addr).is_some_and(|(base, size)| len <= size - (addr - base))
    }

    /// Changes whenever a range was removed.
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
