//! The ring: page-locked memory in pieces, which a session shares with its worker to copy pageable memory.

use super::host_box::HostBox;
use super::wait::Slot;
use protocol::BULK_CHUNK;
use std::collections::VecDeque;
use std::sync::Arc;

pub const PIECE: usize = BULK_CHUNK;
/// The number of pieces. It is small, so that the pieces stay in the processors' caches.
pub const PIECES: usize = 8;

#[derive(Default)]
pub enum Ring {
    /// No copy has used the ring yet, so no memory is allocated.
    #[default]
    Unused,
    There(Pieces),
    /// The session does not use a ring. The pieces are those of a ring that the worker does not share any more.
    Refused(Option<Pieces>),
}

pub struct Pieces {
    pub context: u64,
    pub base: usize,
    /// The address of each piece, and the slot of the last copy that used the piece. The first piece was used the
    /// longest time ago.
    pub used: VecDeque<(usize, Option<Arc<Slot>>)>,
}

impl Pieces {
    pub fn all(&self) -> HostBox {
        HostBox::linear(self.base, (PIECE * PIECES) as u64)
    }
}
