//! The ring of page-locked memory that a session shares with its worker, in pieces.

use super::host_box::HostBox;
use super::wait::Slot;
use protocol::BULK_CHUNK;
use std::collections::VecDeque;
use std::sync::Arc;

pub const PIECE: usize = BULK_CHUNK;
/// A small number, so that the pieces stay in the processors' caches.
pub const PIECES: usize = 8;

#[derive(Default)]
pub enum Ring {
    /// No copy went through it yet.
    #[default]
    Unused,
    There(Pieces),
    /// No ring is available; there may be one that the worker does not share any more.
    Refused(Option<Pieces>),
}

pub struct Pieces {
    pub context: u64,
    pub base: usize,
    /// The place of each piece, and the copy that used it last; the oldest first.
    pub used: VecDeque<(usize, Option<Arc<Slot>>)>,
}

impl Pieces {
    pub fn all(&self) -> HostBox {
        HostBox::linear(self.base, (PIECE * PIECES) as u64)
    }
}
