//! The frames that a session has to send, and those sent that it may have to send again.

use super::queues::Queues;
use super::streams::Streams;
use protocol::{HEADER_BYTES, Header, Kept, Writer};

/// More waiting bytes than this leave at once.
pub const FULL: usize = 64 << 10;
/// Tails longer than this are sent from where they are.
pub const COPIED_TAIL: usize = 16 << 10;
/// Borrowed tails are acknowledged, and copied if they have to be, in pieces of this many bytes.
const BORROWED: usize = 64 << 10;
/// The most memory that is kept for later pieces.
const MOST_SPARE: usize = 4 << 20;

pub enum Piece {
    Owned(Vec<u8>),
    /// Memory of a caller that is still in the call that sends it.
    Borrowed(usize, usize),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match *self {
            Piece::Owned(ref bytes) => bytes,
            // SAFETY: `own_tails` replaces it before the call that borrowed the memory returns.
            Piece::Borrowed(at, len) => unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), len)
            },
        }
    }
}

/// Memory of pieces that are no longer kept: new memory costs a page fault for each 4 KiB.
#[derive(Default)]
struct Spares {
    all: Vec<Vec<u8>>,
    bytes: usize,
}

impl Spares {
    fn take(&mut self, len: usize) -> Vec<u8> {
        let Some(at) = self.all.iter().rposition(|spare| spare.capacity() >= len) else {
            return Vec::with_capacity(len);
        };
        let spare = self.all.swap_remove(at);
        self.bytes -= spare.capacity();
        spare
    }

    fn give(&mut self, mut bytes: Vec<u8>) {
        if self.bytes + bytes.capacity() <= MOST_SPARE {
            bytes.clear();
            self.bytes += bytes.capacity();
            self.all.push(bytes);
        }
    }
}

pub struct Outbox {
    pub kept: Kept<Piece>,
    /// The number of kept pieces that are borrowed.
    borrowed: usize,
    spares: Spares,
    /// The number of the last command.
    pub last: u64,
    pub streams: Streams,
    pub queues: Queues,
    /// Whether the background thread ticks; else it sleeps.
    pub ticking: bool,
    /// Whether the socket took no more: the background thread waits until it does.
    pub full: bool,
    pub connected: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        let (kept, spares, streams) = (Kept::default(), Spares::default(), Streams::default());
        let queues = Queues::default();
        Outbox { kept, borrowed: 0, spares, last: 0, streams, queues, ticking: false, full: false, connected: true }
    }
}

impl Outbox {
    /// Appends a frame whose payload is what `body` writes and `tail` bytes that follow later.
    pub fn frame(&mut self, mut header: Header, tail: usize, body: impl FnOnce(&mut Writer)) {
        if !matches!(self.kept.last(), Some(Piece::Owned(bytes)) if bytes.len() < FULL) {
            self.kept.push(Piece::Owned(self.spares.take(FULL)));
        }
        self.kept.extend_last(|last| {
            let Piece::Owned(bytes) = last else { return };
            let mut writer = Writer { bytes: std::mem::take(bytes) };
            let start = writer.bytes.len();
            writer.raw(&[0; HEADER_BYTES]);
            body(&mut writer);
            *bytes = writer.bytes;
            header.len = (bytes.len() - start - HEADER_BYTES + tail) as u32;
            bytes[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
        });
    }

    /// Records a frame of this number that left before there was an outbox.
    pub fn has_sent(&mut self, number: u64, frame: Vec<u8>) {
        let len = frame.len();
        self.last = number;
        self.kept.push(Piece::Owned(frame));
        self.kept.advance(len);
    }

    pub fn tail(&mut self, bytes: &[u8]) {
        if bytes.len() > COPIED_TAIL {
            for piece in bytes.chunks(BORROWED) {
                self.kept.push(Piece::Borrowed(piece.as_ptr().expose_provenance(), piece.len()));
                self.borrowed += 1;
            }
        } else {
            self.kept.extend_last(|last| {
                if let Piece::Owned(all) = last {
                    all.extend_from_slice(bytes);
                }
            });
        }
    }

    /// Drops what the worker has received. An impossible count is ignored: more is kept then.
    pub fn trim(&mut self, acknowledged: u64) {
        let Outbox { kept, borrowed, spares, .. } = self;
        let _ = kept.acknowledge(acknowledged, |piece| match piece {
            Piece::Owned(bytes) => spares.give(bytes),
            Piece::Borrowed(..) => *borrowed -= 1,
        });
    }

    /// Copies the borrowed pieces.
    pub fn own(&mut self) {
        let Outbox { kept, borrowed, spares, .. } = self;
        for piece in kept.newest_first() {
            if *borrowed == 0 {
                return;
            }
            if let Piece::Borrowed(_, len) = *piece {
                let mut bytes = spares.take(len);
                bytes.extend_from_slice(piece.as_ref());
                *piece = Piece::Owned(bytes);
                *borrowed -= 1;
            }
        }
    }

    /// Drops everything: nothing will be sent any more.
    pub fn give_up(&mut self) {
        (self.kept, self.borrowed) = (Kept::default(), 0);
    }
}
