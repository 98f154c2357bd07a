//! The ranges of device memory a kernel may touch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

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
    ranges: RwLock<BTreeMap<u64, u64>>,
    /// Bumped on every removal, so that a warp knows when the range it remembers may have gone.
    generation: AtomicU64,
}

impl MemoryMap {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes `[base, base + len)` valid. Ranges must not overlap.
    pub fn insert(&self, base: u64, len: u64) {
        self.inner.ranges.write().unwrap_or_else(PoisonError::into_inner).insert(base, len);
    }

    /// Makes the range that starts at `base` invalid and returns its length.
    pub fn remove(&self, base: u64) -> Option<u64> {
        let removed = self.inner.ranges.write().unwrap_or_else(PoisonError::into_inner).remove(&base);
        self.inner.generation.fetch_add(1, Ordering::Release);
        removed
    }

    /// The range `(base, len)` that holds `addr`.
    pub fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let ranges = self.inner.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&base, &len) = ranges.range(..=addr).next_back()?;
        (addr - base < len).then_some((base, len))
    }

    /// Whether `[addr, addr + len)` lies inside one range.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        self.find(addr).is_some_and(|(base, size)| len <= size - (addr - base))
    }

    /// Changes whenever a range was removed.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
    }
}
