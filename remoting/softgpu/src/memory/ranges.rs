//! The free parts of an address range. It takes the first part that fits, and joins adjacent free parts.

use std::collections::BTreeMap;

pub struct Ranges {
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    pub fn new(base: u64, len: u64) -> Self {
        Self { free: BTreeMap::from([(base, len)]) }
    }

    /// Takes the lowest free range of `len` bytes at a multiple of `align`.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (base, at) = self.free.iter().find_map(|(&base, &size)| {
            let at = base.checked_next_multiple_of(align)?;
            (at - base).checked_add(len).filter(|&needed| needed <= size).map(|_| (base, at))
        })?;
        self.cut(base, at, len);
        Some(at)
    }

    /// Takes exactly `[at, at + len)`. Returns whether the range was free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&base, &size)) = self.free.range(..=at).next_back() else { return false };
        let fits = (at - base).checked_add(len).is_some_and(|needed| needed <= size);
        if fits {
            self.cut(base, at, len);
        }
        fits
    }

    fn cut(&mut self, base: u64, at: u64, len: u64) {
        let Some(size) = self.free.remove(&base) else { return };
        if at > base {
            self.free.insert(base, at - base);
        }
        let end = base + size;
        if end > at + len {
            self.free.insert(at + len, end - (at + len));
        }
    }

    pub fn give_back(&mut self, at: u64, len: u64) {
        let (mut start, mut end) = (at, at + len);
        if let Some((&base, &size)) = self.free.range(..at).next_back()
            && base + size == at
        {
            self.free.remove(&base);
            start = base;
        }
        if let Some(size) = self.free.remove(&end) {
            end += size;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_lowest_aligned_place_and_joins_on_return() {
        let mut ranges = Ranges::new(100, 1000);
        assert_eq!(ranges.take(10, 64), Some(128));
        assert_eq!(ranges.take(20, 1), Some(100));
        assert_eq!(ranges.take(2000, 1), None);
        ranges.give_back(128, 10);
        ranges.give_back(100, 20);
        assert_eq!(ranges.take(1000, 1), Some(100));
    }

    #[test]
    fn takes_an_exact_place_only_if_free() {
        let mut ranges = Ranges::new(0, 100);
        assert!(ranges.take_at(40, 20));
        assert!(!ranges.take_at(50, 20));
        assert!(!ranges.take_at(90, 20));
        assert_eq!(ranges.take(41, 1), None);
        ranges.give_back(40, 20);
        assert!(ranges.take_at(0, 100));
    }
}
