//! The queue of outgoing frames, so that a client that does not read never stops the worker. Sent frames are kept until
//! the client has received them.

use crate::driver::staging::Buffer;
use protocol::{ACKNOWLEDGE_BYTES, Acknowledge, Header, Kept, Message, OLDEST_WIRE, OutOfRange, Wire, Writer, since};
use std::io::{self, IoSlice};
use std::ops::Range;

/// The size in bytes up to which small frames are joined, so that one system call sends many of them.
const JOIN: usize = 64 << 10;
const SLICES: usize = 16;

enum Piece {
    Owned(Vec<u8>),
    Pinned(Buffer, Range<usize>),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Piece::Owned(bytes) => bytes,
            Piece::Pinned(buffer, range) => buffer.bytes(range.clone()),
        }
    }
}

pub struct Outbox {
    /// The wire version that the client uses.
    pub wire: u32,
    kept: Kept<Piece>,
    /// The number of bytes received from the client, of which `told` were acknowledged.
    received: u64,
    told: u64,
    pub bytes_out: u64,
    /// Whether sent frames are kept until they are acknowledged.
    keeps: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Outbox { wire: OLDEST_WIRE, kept: Kept::default(), received: 0, told: 0, bytes_out: 0, keeps: false }
    }
}

impl Outbox {
    /// Enables keeping of sent frames, so that another connection can continue. Call this before anything is sent.
    pub fn keep(&mut self) {
        self.keeps = true;
    }

    /// Takes over the client of another worker. The client has acknowledged `acknowledged` bytes there, was then sent
    /// the bytes `sent`, and has itself sent `received` bytes.
    pub fn take_over(&mut self, acknowledged: u64, sent: Vec<u8>, received: u64) {
        let count = sent.len();
        self.kept = Kept::starting_at(acknowledged);
        self.kept.push(Piece::Owned(sent));
        self.kept.advance(count);
        (self.received, self.told) = (received, received);
    }

    /// Returns the number of bytes that the client is known to have received, and all bytes after them.
    pub fn all(&self) -> (u64, Vec<u8>) {
        (self.kept.first(), self.kept.pieces().flat_map(AsRef::as_ref).copied().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.kept.unsent() == 0
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.kept.unsent()
    }

    /// Returns the number of bytes that the client has not acknowledged.
    pub fn kept(&self) -> usize {
        self.kept.bytes()
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Counts bytes received from the client. They are acknowledged after [`ACKNOWLEDGE_BYTES`] at the latest.
    pub fn note_received(&mut self, count: usize) {
        self.received += count as u64;
        if self.keeps && self.received - self.told >= ACKNOWLEDGE_BYTES {
            self.push(Acknowledge::CODE, 0, &Acknowledge {}, &[]);
        }
    }

    /// Records that the client has received `received` bytes.
    ///
    /// # Errors
    /// Fails if so many bytes were not sent.
    pub fn acknowledge(&mut self, received: u64) -> Result<(), OutOfRange> {
        self.kept.acknowledge(received, drop)
    }

    /// Sets the position of the next connection: it continues after the bytes that the client has received.
    ///
    /// # Errors
    /// Fails if so many bytes were not sent, or if the bytes after them are no longer kept.
    pub fn rewind(&mut self, received: u64) -> Result<(), OutOfRange> {
        self.kept.rewind(received)
    }

    /// Queues the frame of `message`, followed by `tail`. Queues nothing if the client's wire version does not have the
    /// message.
    pub fn push(&mut self, code: u32, seq: u64, message: &impl Wire, tail: &[u8]) {
        if since(code) > self.wire {
            return;
        }
        let header = self.header(code, seq, message.size() + tail.len());
        self.join(header, message, tail);
    }

    /// Like `push`, but sends a large tail directly from its buffer.
    pub fn push_pinned(&mut self, code: u32, seq: u64, message: &impl Wire, buffer: Buffer, range: Range<usize>) {
        if range.len() < JOIN / 2 {
            return self.push(code, seq, message, buffer.bytes(range));
        }
        let header = self.header(code, seq, message.size() + range.len());
        self.join(header, message, &[]);
        self.kept.push(Piece::Pinned(buffer, range));
    }

    fn header(&mut self, code: u32, seq: u64, len: usize) -> Header {
        self.told = self.received;
        Header { len: len as u32, code, seq, stream_id: 0, ack: self.received }
    }

    /// Appends a frame to the last piece of the queue if it is owned and has room, and otherwise to a new piece.
    fn join(&mut self, header: Header, message: &impl Wire, tail: &[u8]) {
        let len = protocol::HEADER_BYTES + message.size() + tail.len();
        if !matches!(self.kept.last(), Some(Piece::Owned(bytes)) if bytes.len() + len < JOIN) {
            self.kept.push(Piece::Owned(Vec::new()));
        }
        self.kept.extend_last(|last| {
            if let Piece::Owned(bytes) = last {
                let mut w = Writer { bytes: std::mem::take(bytes) };
                w.raw(&header.encode()).put(message).raw(tail);
                *bytes = w.bytes;
            }
        });
    }

    /// Sends queued bytes until `send` would block.
    ///
    /// # Errors
    /// Fails if the connection is broken.
    pub fn flush(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        while !self.is_empty() {
            let slices: Vec<IoSlice<'_>> = self.kept.to_send().take(SLICES).map(IoSlice::new).collect();
            let count = match send(&slices) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.bytes_out += count as u64;
            self.kept.advance(count);
            if !self.keeps {
                let _ = self.kept.acknowledge(self.kept.sent(), drop);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Consumed, Decoder, Text};

    #[test]
    fn frames_survive_partial_sends() {
        for step in [1, 5, 100, 1 << 20] {
            let mut outbox = Outbox::default();
            outbox.keep();
            for i in 0..50 {
                outbox.push(Consumed::CODE, 0, &Consumed { bytes: i }, &[]);
                outbox.push(Text::CODE, i, &Text::default(), &vec![i as u8; 5000]);
            }
            let mut wire = Vec::new();
            while !outbox.is_empty() {
                outbox
                    .flush(|slices| {
                        let bytes = &slices.iter().find(|s| !s.is_empty()).unwrap()[..];
                        wire.extend_from_slice(&bytes[..bytes.len().min(step)]);
                        Ok(bytes.len().min(step))
                    })
                    .unwrap();
            }
            assert_eq!((outbox.unsent(), outbox.bytes_out), (0, wire.len() as u64));
            outbox.acknowledge(wire.len() as u64).unwrap();
            assert_eq!(outbox.kept(), 0);
            let mut decoder = Decoder::new();
            decoder.feed(&wire);
            for i in 0..50 {
                let (header, payload) = decoder.next_frame().unwrap().unwrap();
                assert_eq!((header.code, Consumed::decode(payload).unwrap().0.bytes), (Consumed::CODE, i));
                let (header, payload) = decoder.next_frame().unwrap().unwrap();
                assert_eq!((header.seq, Text::decode(payload).unwrap().1.to_vec()), (i, vec![i as u8; 5000]));
            }
        }
    }
}
