//! Reports of allocation bounds to a driver that checks accesses: the software GPU. So an access beyond an allocation
//! fails as it does without remotegpu, although allocations share slabs. No other driver requests these reports.

use super::heap::Piece;
use super::state::{DeviceMemory, Freed, State};
use crate::Code;
use crate::devices::context::Live;
use protocol::PieceBounds;

impl DeviceMemory {
    /// Reports the bounds of memory that [`DeviceMemory::map_at`] mapped. A `size` of 0 means that the memory was
    /// unmapped.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn bound_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        self.state.lock().bound(live, address, size)
    }
}

impl State {
    /// Reports the bounds of an allocation to a driver that checks them. A `size` of 0 means that it was freed.
    ///
    /// # Errors
    /// The session's sticky error.
    pub(super) fn bound(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        if !self.tells_bounds {
            return Ok(());
        }
        live.session.post(0, &PieceBounds { address, size }).map(drop)
    }

    /// Reclaims a piece that no work uses any more.
    pub(super) fn reclaim(&mut self, live: &Live, piece: &Piece) {
        // A failed session has no memory, so the error is ignored.
        let _ = self.bound(live, piece.address, 0);
        self.heap.reclaim(piece);
    }

    pub(super) fn reclaim_all(&mut self, freed: &Freed) {
        freed.pieces.iter().for_each(|piece| self.reclaim(&freed.live, piece));
    }
}
