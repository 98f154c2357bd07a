//! The allocations in a slab, as the client divides it.

use protocol::PieceBounds;
use std::collections::BTreeMap;

/// The allocations of a slab that the client has reported: offset in the slab, and size. They do not overlap.
#[derive(Debug, Default)]
pub struct Pieces(BTreeMap<u64, u64>);

impl Pieces {
    /// Adds a piece and removes all pieces that it overlaps. With `size` 0, removes the piece that begins at `at`.
    /// Returns the changes for the driver in their order, as pairs of offset and size.
    pub fn change(&mut self, at: u64, size: u64) -> Vec<(u64, u64)> {
        let end = at + size.max(1);
        let mut gone: Vec<u64> = self.0.range(at..end).map(|(start, _)| *start).collect();
        let before = self.0.range(..at).next_back().filter(|(start, len)| *start + **len > at);
        gone.extend(before.filter(|_| size > 0).map(|(start, _)| *start));
        gone.retain(|start| self.0.remove(start).is_some());
        // An existing piece at this offset is replaced in one step, because kernels may be using it.
        let mut changes: Vec<_> =
            gone.into_iter().filter(|start| size == 0 || *start != at).map(|start| (start, 0)).collect();
        if size > 0 {
            self.0.insert(at, size);
            changes.push((at, size));
        }
        changes
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the pieces of a slab whose address is `base`.
    pub fn of(&self, base: u64) -> impl Iterator<Item = PieceBounds> {
        self.0.iter().map(move |(at, size)| PieceBounds { address: base + at, size: *size })
    }
}

#[cfg(test)]
mod tests {
    use super::Pieces;

    #[test]
    fn a_piece_takes_the_place_of_those_that_it_overlaps() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.change(0, 100), [(0, 100)]);
        assert_eq!(pieces.change(512, 100), [(512, 100)]);
        assert_eq!(pieces.change(1024, 8), [(1024, 8)]);
        assert_eq!(pieces.change(0, 80), [(0, 80)]);
        assert_eq!(pieces.change(600, 500), [(1024, 0), (512, 0), (600, 500)]);
        assert_eq!(pieces.change(601, 0), []);
        assert_eq!(pieces.change(600, 0), [(600, 0)]);
        assert_eq!(pieces.of(7).map(|piece| (piece.address, piece.size)).collect::<Vec<_>>(), [(7, 80)]);
    }
}
