//! Outgoing frames, queued so that a client that does not read never stops the worker.

use crate::staging::Buffer;
use protocol::{Header, Wire, Writer};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

/// Small frames are joined up to this size, so that one system call sends many.
const JOIN: usize = 64 << 10;
const SLICES: usize = 16;

enum Piece {
    Owned(Vec<u8>),
    Pinned(Buffer, Range<usize>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Owned(bytes) => bytes,
            Piece::Pinned(buffer, range) => buffer.bytes(range.clone()),
        }
    }
}

#[derive(Default)]
pub struct Outbox {
    queue: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    queued: usize,
    pub bytes_out: u64,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that wait for the client.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Queues the frame of `message`, followed by `tail`.
    pub fn push(&mut self, code: u32, seq: u64, message: &impl Wire, tail: &[u8]) {
        let len = message.size() + tail.len();
        let bytes = self.joined(len);
        bytes.extend_from_slice(&header(code, seq, len));
        let mut w = Writer { bytes: std::mem::take(bytes) };
        w.put(message).raw(tail);
        *bytes = w.bytes;
    }

    /// As `push`; the tail is sent from where it lies.
    pub fn push_pinned(&mut self, code: u32, seq: u64, message: &impl Wire, buffer: Buffer, range: Range<usize>) {
        if range.len() < JOIN / 2 {
            return self.push(code, seq, message, buffer.bytes(range));
        }
        let size = message.size();
        let len = size + range.len();
        let bytes = self.joined(size);
        bytes.extend_from_slice(&header(code, seq, len));
        let mut w = Writer { bytes: std::mem::take(bytes) };
        w.put(message);
        *bytes = w.bytes;
        self.queued += range.len();
        self.queue.push_back(Piece::Pinned(buffer, range));
    }

    /// The owned piece at the end of the queue to which a header and `len` bytes may be added.
    fn joined(&mut self, len: usize) -> &mut Vec<u8> {
        self.queued += protocol::HEADER_BYTES + len;
        if !matches!(self.queue.back(), Some(Piece::Owned(bytes)) if bytes.len() + len < JOIN) {
            self.queue.push_back(Piece::Owned(Vec::new()));
        }
        match self.queue.back_mut() {
            Some(Piece::Owned(bytes)) => bytes,
            _ => unreachable!("an owned piece is at the end"),
        }
    }

    /// Sends what `send` takes, until it would block.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn flush(&mut self, mut send: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices: Vec<IoSlice<'_>> =
                self.queue.iter().take(SLICES).map(|piece| IoSlice::new(piece.bytes())).collect();
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, self.sent);
            let count = match send(rest) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.bytes_out += count as u64;
            self.queued -= count;
            self.sent += count;
            while let Some(first) = self.queue.front().map(|piece| piece.bytes().len()).filter(|len| self.sent >= *len)
            {
                self.sent -= first;
                self.queue.pop_front();
            }
        }
        Ok(())
    }
}

fn header(code: u32, seq: u64, len: usize) -> [u8; protocol::HEADER_BYTES] {
    Header { len: len as u32, code, seq, ..Default::default() }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Consumed, Decoder, Message, Text};

    #[test]
    fn frames_survive_partial_sends() {
        for step in [1, 5, 100, 1 << 20] {
            let mut outbox = Outbox::default();
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
            assert_eq!((outbox.queued(), outbox.bytes_out), (0, wire.len() as u64));
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
