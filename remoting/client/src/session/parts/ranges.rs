//! Free ranges of an address space. This is a pure data structure without locks and system calls.

use std::collections::{BTreeMap, BTreeSet};

/// A set of disjoint free ranges, indexed by start and by size.
#[derive(Debug, Default, Clone)]
pub struct Ranges {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Ranges {
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees `start..start + size` and merges it with adjacent free ranges inside `within` (start and end).
    pub fn insert(&mut self, start: u64, size: u64, within: (u64, u64)) {
        let (mut start, mut size) = (start, size);
        let before = self.by_start.range(..start).next_back().map(|(&s, &n)| (s, n));
        if let Some((before_start, before_size)) = before
            && before_start + before_size == start
            && before_start >= within.0
        {
            self.remove(before_start, before_size);
            (start, size) = (before_start, before_size + size);
        }
        if let Some(&after_size) = self.by_start.get(&(start + size))
            && start + size < within.1
        {
            self.remove(start + size, after_size);
            size += after_size;
        }
        self.add(start, size);
    }

    /// Takes `size` bytes at a multiple of `align` from the smallest range that has room; of equal ranges, from the
    /// lowest. Returns the start.
    pub fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (range_size, range_start, place) = self.by_size.range((size, 0)..).find_map(|&(range_size, start)| {
            let place = start.checked_next_multiple_of(align)?;
            (place - start <= range_size - size).then_some((range_size, start, place))
        })?;
        self.carve(range_start, range_size, place, size);
        Some(place)
    }

    /// Takes `start..start + size`. Returns false, and takes nothing, if a part of it is not free.
    pub fn take_at(&mut self, start: u64, size: u64) -> bool {
        let Some((&range_start, &range_size)) = self.by_start.range(..=start).next_back() else { return false };
        let end = range_start + range_size;
        if start >= end || size > end - start {
            return false;
        }
        self.carve(range_start, range_size, start, size);
        true
    }

    #[cfg(test)]
    pub fn total(&self) -> u64 {
        self.by_start.values().sum()
    }

    fn carve(&mut self, range_start: u64, range_size: u64, start: u64, size: u64) {
        self.remove(range_start, range_size);
        if start > range_start {
            self.add(range_start, start - range_start);
        }
        let (end, range_end) = (start + size, range_start + range_size);
        if end < range_end {
            self.add(end, range_end - end);
        }
    }

    fn add(&mut self, start: u64, size: u64) {
        self.by_start.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove(&mut self, start: u64, size: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(size, start));
    }
}
