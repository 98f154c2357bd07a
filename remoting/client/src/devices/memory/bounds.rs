//! Bounds of allocations in slabs, reported to a driver that checks them: an access past the end of one fails on a
//! share as it does natively on the software GPU. No other driver asks for that.

use super::heap::Piece;
use super::state::{DeviceMemory, Freed, State};
use crate::Code;
use crate::devices::context::Live;
use protocol::PieceBounds;

impl DeviceMemory {
    /// Reports memory that [`DeviceMemory::map_at`] placed; `size` 0: the piece at this address has ended.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn bound_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        self.state.lock().bound(live, address, size)
    }
}

impl State {
    /// # Errors
    /// The session's sticky error.
    pub(super) fn bound(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        if !self.tells_bounds {
            return Ok(());
        }
        live.session.post(0, &PieceBounds { address, size }).map(drop)
    }

    /// Reclaims a piece that nothing uses any more.
    pub(super) fn reclaim(&mut self, live: &Live, piece: &Piece) {
        // A session that has failed has no memory.
        let _ = self.bound(live, piece.address, 0);
        self.heap.reclaim(piece);
    }

    pub(super) fn reclaim_all(&mut self, freed: &Freed) {
        freed.pieces.iter().for_each(|piece| self.reclaim(&freed.live, piece));
    }
}
