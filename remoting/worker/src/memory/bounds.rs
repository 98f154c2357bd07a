//! Allocations within slabs, for a driver that checks bounds. The client divides slabs into allocations; a driver that
//! checks less than the software GPU gets no bounds.

use crate::driver::Result;
use crate::memory::slabs::Slab;
use crate::session::commands::Session;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use protocol::PieceBounds;
use std::collections::BTreeMap;

/// Smallest average size of a slab's allocations, which limits their number.
const LEAST: u64 = 64;

/// The known allocations of a slab: offset in the slab, and size. They do not overlap.
#[derive(Debug, Default)]
pub struct Pieces(BTreeMap<u64, u64>);

impl Pieces {
    /// Adds a piece, which replaces all that it overlaps. With `size` 0, removes the piece that begins here. Returns
    /// the changes for the driver, in this order.
    fn change(&mut self, at: u64, size: u64) -> Vec<(u64, u64)> {
        let end = at + size.max(1);
        let mut gone: Vec<u64> = self.0.range(at..end).map(|(start, _)| *start).collect();
        let before = self.0.range(..at).next_back().filter(|(start, len)| *start + **len > at);
        gone.extend(before.filter(|_| size > 0).map(|(start, _)| *start));
        gone.retain(|start| self.0.remove(start).is_some());
        // A piece that begins here is replaced in one step: kernels may be using it.
        let mut changes: Vec<_> =
            gone.into_iter().filter(|start| size == 0 || *start != at).map(|start| (start, 0)).collect();
        if size > 0 {
            self.0.insert(at, size);
            changes.push((at, size));
        }
        changes
    }

    /// Returns the pieces of a slab that starts at `base`.
    pub fn of(&self, base: u64) -> impl Iterator<Item = PieceBounds> {
        self.0.iter().map(move |(at, size)| PieceBounds { address: base + at, size: *size })
    }
}

impl Session {
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a piece outside of all slabs, or if its slab has too many.
    pub fn piece_bounds(&mut self, c: &PieceBounds) -> Result<()> {
        if !self.driver.checks_bounds() {
            return Ok(());
        }
        let slab = self.memory.slabs.range_mut(..=c.address).next_back();
        let within = |(base, slab): &(&u64, &mut Slab)| {
            let at = c.address - **base;
            at < slab.size && c.size <= slab.size - at
        };
        let (base, slab) = slab.filter(within).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if slab.pieces.0.len() as u64 > slab.size / LEAST {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let changes = slab.pieces.change(c.address - base, c.size);
        if slab.memory == 0 {
            return Ok(());
        }
        changes.into_iter().try_for_each(|(at, size)| self.driver.memory_bound(base + at, size))
    }

    /// Gives the driver the bounds in a slab that was mapped, or made accessible to one more device.
    pub fn show_bounds(&self, address: u64) -> Result<()> {
        let Some(slab) = self.memory.slabs.get(&address) else { return Ok(()) };
        slab.pieces.of(address).try_for_each(|piece| self.driver.memory_bound(piece.address, piece.size))
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
