//! The host side of a copy: rows in the program's memory. The connection carries their bytes packed, without gaps.

use driverapi::memory_operations::Width;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// A box in host memory at `base`: `depth` slices of `height` rows of `width` bytes. The starts of rows are `pitch`
/// bytes apart, those of slices `slice` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBox {
    pub base: usize,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub pitch: u64,
    pub slice: u64,
}

impl HostBox {
    pub fn linear(base: usize, len: u64) -> Self {
        HostBox { base, width: len, height: 1, depth: 1, pitch: len, slice: len }
    }

    /// Returns the number of bytes without gaps.
    pub fn packed(&self) -> u64 {
        self.width * self.height * self.depth
    }

    /// Returns the address of the first byte, and the address after the last byte.
    pub fn span(&self) -> (usize, usize) {
        if self.packed() == 0 {
            return (self.base, self.base);
        }
        let last = (self.depth - 1) * self.slice + (self.height - 1) * self.pitch + self.width;
        (self.base, self.base + last as usize)
    }

    pub fn overlaps(&self, other: &HostBox) -> bool {
        let ((a, a_end), (b, b_end)) = (self.span(), other.span());
        a < b_end && b < a_end
    }

    /// Returns an equivalent box in which rows without gaps between them are merged into one row, and slices likewise.
    fn flat(&self) -> HostBox {
        let mut flat = *self;
        if flat.pitch == flat.width || flat.height == 1 {
            let one_slice = flat.width * flat.height;
            (flat.width, flat.height, flat.pitch) = (one_slice, 1, one_slice);
            if flat.slice == one_slice || flat.depth == 1 {
                return HostBox::linear(flat.base, one_slice * flat.depth);
            }
        }
        flat
    }

    /// Returns the contiguous runs of `len` packed bytes from `offset` on, each as an address and a length.
    pub fn runs(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, usize)> + use<> {
        let flat = self.flat();
        let (mut at, end) = (offset, (offset + len).min(flat.packed()));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (row, column) = (at / flat.width, at % flat.width);
            let (z, y) = (row / flat.height, row % flat.height);
            let count = (flat.width - column).min(end - at);
            at += count;
            let place = z * flat.slice + y * flat.pitch + column;
            Some((flat.base + place as usize, count as usize))
        })
    }

    /// Copies `len` packed bytes, starting at `offset`, to the address `to`.
    pub fn pack(&self, offset: u64, len: u64, mut to: usize) {
        for (address, count) in self.runs(offset, len) {
            // SAFETY: the program gave this memory to a copy, and `to` is the copy's own.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    with_exposed_provenance(address),
                    with_exposed_provenance_mut::<u8>(to),
                    count,
                )
            };
            to += count;
        }
    }

    /// Copies `len` packed bytes from the address `from` into the box, starting at `offset`.
    pub fn unpack(&self, offset: u64, len: u64, mut from: usize) {
        for (address, count) in self.runs(offset, len) {
            // SAFETY: as in `pack`.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    with_exposed_provenance::<u8>(from),
                    with_exposed_provenance_mut(address),
                    count,
                )
            };
            from += count;
        }
    }

    /// Copies all bytes from a box of the same shape. The boxes may overlap.
    pub fn copy_from(&self, from: &HostBox) {
        let row = |b: &HostBox, z, y| b.base + (z * b.slice + y * b.pitch) as usize;
        for (z, y) in (0..self.depth).flat_map(|z| (0..self.height).map(move |y| (z, y))) {
            let source = std::ptr::with_exposed_provenance::<u8>(row(from, z, y));
            let target = std::ptr::with_exposed_provenance_mut::<u8>(row(self, z, y));
            // SAFETY: the program gave both boxes to this copy, and they may overlap.
            unsafe { std::ptr::copy(source, target, self.width as usize) };
        }
    }

    /// Fills each row with copies of `element`. The width of a row is a multiple of the element's length.
    pub fn fill(&self, element: &[u8]) {
        for (z, y) in (0..self.depth).flat_map(|z| (0..self.height).map(move |y| (z, y))) {
            let row = self.base + (z * self.slice + y * self.pitch) as usize;
            // SAFETY: the program gave this memory to a fill, which waits for nothing but the stream.
            let row = unsafe {
                std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(row), self.width as usize)
            };
            match element {
                [byte] => row.fill(*byte),
                _ => row.chunks_exact_mut(element.len()).for_each(|place| place.copy_from_slice(element)),
            }
        }
    }
}

/// Writes an aligned word of page-locked memory atomically, because other threads of the program may read it.
pub fn store(address: usize, width: Width, value: u64) {
    // SAFETY: the word lies in page-locked memory of the program, which is not freed before its stream got here.
    unsafe {
        match width {
            Width::Four => AtomicU32::from_ptr(with_exposed_provenance_mut(address)).store(value as u32, SeqCst),
            Width::Eight => AtomicU64::from_ptr(with_exposed_provenance_mut(address)).store(value, SeqCst),
        }
    }
}

/// Reads an aligned word of page-locked memory atomically.
pub fn load(address: usize, width: Width) -> u64 {
    // SAFETY: as in `store`.
    unsafe {
        match width {
            Width::Four => AtomicU32::from_ptr(with_exposed_provenance_mut(address)).load(SeqCst).into(),
            Width::Eight => AtomicU64::from_ptr(with_exposed_provenance_mut(address)).load(SeqCst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed_addresses(b: &HostBox) -> Vec<usize> {
        let mut all = Vec::new();
        for z in 0..b.depth {
            for y in 0..b.height {
                all.extend((0..b.width).map(|x| b.base + (z * b.slice + y * b.pitch + x) as usize));
            }
        }
        all
    }

    #[test]
    fn runs_visit_the_packed_bytes_in_order() {
        let boxes = [
            HostBox::linear(100, 37),
            HostBox { base: 7, width: 5, height: 4, depth: 3, pitch: 8, slice: 40 },
            HostBox { base: 7, width: 8, height: 4, depth: 3, pitch: 8, slice: 40 },
            HostBox { base: 7, width: 8, height: 4, depth: 3, pitch: 8, slice: 32 },
            HostBox { base: 7, width: 8, height: 1, depth: 3, pitch: 0, slice: 9 },
        ];
        for b in boxes {
            let oracle = packed_addresses(&b);
            for offset in 0..=b.packed() {
                for len in [0, 1, 3, b.packed() - offset, b.packed() + 9] {
                    let end = (offset + len).min(b.packed()) as usize;
                    let got: Vec<usize> = b.runs(offset, len).flat_map(|(a, n)| a..a + n).collect();
                    assert_eq!(got, oracle[offset as usize..end], "{b:?} {offset} {len}");
                }
            }
        }
        assert_eq!(boxes[3].runs(0, 96).count(), 1, "bytes without gaps are one run");
    }

    #[test]
    fn a_fill_writes_rows_and_nothing_between_them() {
        let mut bytes = [0u8; 16];
        let base = bytes.as_mut_ptr().expose_provenance() + 1;
        HostBox { base, width: 4, height: 2, depth: 1, pitch: 7, slice: 0 }.fill(&[1, 2]);
        assert_eq!(bytes, [0, 1, 2, 1, 2, 0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn spans_overlap_where_their_bytes_could() {
        let rows = HostBox { base: 100, width: 4, height: 2, depth: 1, pitch: 10, slice: 20 };
        assert_eq!(rows.span(), (100, 114));
        assert!(rows.overlaps(&HostBox::linear(113, 1)) && !rows.overlaps(&HostBox::linear(114, 1)));
        assert!(!rows.overlaps(&HostBox::linear(105, 0)) || rows.span().0 < 105);
        assert!(!HostBox::linear(100, 0).overlaps(&HostBox::linear(100, 0)));
    }
}
