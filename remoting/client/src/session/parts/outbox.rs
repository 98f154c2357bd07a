//! The outgoing frames of a session: those that are not sent, and those that a reconnect may need again.

use super::queues::Queues;
use super::streams::Streams;
use protocol::{HEADER_BYTES, Header, Kept, Writer};

/// The number of waiting bytes above which the frames are sent at once.
pub const FULL: usize = 64 << 10;
/// The maximum length of a tail that is copied into its frame. Longer tails are sent from the caller's memory.
pub const COPIED_TAIL: usize = 16 << 10;
/// The size in bytes of the pieces in which borrowed tails are acknowledged, and copied if necessary.
const BORROWED: usize = 64 << 10;
/// The maximum number of bytes of spare buffers.
const MOST_SPARE: usize = 4 << 20;

pub enum Piece {
    Owned(Vec<u8>),
    /// Address and length of the caller's memory. The caller waits in the call that sends these bytes.
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

/// Buffers of dropped pieces, kept for reuse. A new buffer would cost a page fault for each 4 KiB.
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
    /// The number of borrowed pieces in `kept`.
    borrowed: usize,
    spares: Spares,
    /// The number of the last appended command.
    pub last: u64,
    pub streams: Streams,
    pub queues: Queues,
    /// Whether the background thread looks for frames periodically. Otherwise it sleeps.
    pub ticking: bool,
    /// Whether the socket's buffer is full. The background thread waits until there is room.
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
    /// Appends a frame. `body` writes the payload, and the caller appends `tail` more bytes later.
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

    /// Records a frame with this number that was sent before the outbox existed.
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

    /// Drops the pieces that the worker has received. `acknowledged` counts the received bytes since the session began.
    /// If it exceeds the number of sent bytes, nothing is dropped.
    pub fn trim(&mut self, acknowledged: u64) {
        let Outbox { kept, borrowed, spares, .. } = self;
        let _ = kept.acknowledge(acknowledged, |piece| match piece {
            Piece::Owned(bytes) => spares.give(bytes),
            Piece::Borrowed(..) => *borrowed -= 1,
        });
    }

    /// Replaces all borrowed pieces by copies, so that their owners may change the bytes.
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

    /// Drops all pieces, because nothing will be sent any more.
    pub fn give_up(&mut self) {
        (self.kept, self.borrowed) = (Kept::default(), 0);
    }
}
