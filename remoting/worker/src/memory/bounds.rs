//! The bounds of allocations in slabs, for a driver that checks bounds. The client divides slabs into allocations. A
//! driver that does not check bounds gets none of them.

use crate::driver::Result;
use crate::memory::slabs::Slab;
use crate::session::commands::Session;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use protocol::PieceBounds;

/// The smallest average size in bytes of a slab's allocations. It limits the number of allocations.
const LEAST: u64 = 64;

impl Session {
    /// Records the bounds of an allocation in a slab, and passes the changes to the driver.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a piece is outside of all slabs, or if its slab has too many pieces.
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
        if slab.pieces.count() as u64 > slab.size / LEAST {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let changes = slab.pieces.change(c.address - base, c.size);
        if slab.memory == 0 {
            return Ok(());
        }
        changes.into_iter().try_for_each(|(at, size)| self.driver.memory_bound(base + at, size))
    }

    /// Gives the driver the bounds in a slab that was mapped, or that another device may now access.
    pub fn show_bounds(&self, address: u64) -> Result<()> {
        let Some(slab) = self.memory.slabs.get(&address) else { return Ok(()) };
        slab.pieces.of(address).try_for_each(|piece| self.driver.memory_bound(piece.address, piece.size))
    }
}
