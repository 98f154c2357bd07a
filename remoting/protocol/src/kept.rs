//! A send buffer for one direction of a session, which keeps bytes until the other end has received them.
//!
//! When a connection breaks, the next one continues at the byte at which the other end stopped receiving. Offsets count
//! bytes instead of frames, so a connection may break inside a frame.

use std::collections::VecDeque;

/// An error: the other end acknowledged bytes that were not sent, or requested bytes that are not buffered any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange {
    pub received: u64,
    pub first: u64,
    pub sent: u64,
}

impl std::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OutOfRange { received, first, sent } = self;
        write!(f, "the other end says that it received {received} bytes; {sent} were sent, and kept from {first} on")
    }
}

impl std::error::Error for OutOfRange {}

/// A stream of bytes in pieces: acknowledged, sent or still to send. Offsets count from the stream's start.
#[derive(Debug)]
pub struct Kept<P> {
    pieces: VecDeque<P>,
    /// Offset of the first buffered byte.
    first: u64,
    sent: u64,
    end: u64,
    /// The index of the piece that is sent next, and the number of its bytes that were sent.
    next: (usize, usize),
}

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Kept { pieces: VecDeque::new(), first: 0, sent: 0, end: 0, next: (0, 0) }
    }
}

impl<P: AsRef<[u8]>> Kept<P> {
    /// Creates an empty buffer, for a stream whose first `offset` bytes the other end has received.
    pub fn starting_at(offset: u64) -> Self {
        Kept { first: offset, sent: offset, end: offset, ..Kept::default() }
    }

    /// Returns the offset of the first buffered byte.
    pub fn first(&self) -> u64 {
        self.first
    }

    pub fn pieces(&self) -> impl Iterator<Item = &P> {
        self.pieces.iter()
    }

    pub fn push(&mut self, piece: P) {
        self.end += piece.as_ref().len() as u64;
        self.pieces.push_back(piece);
    }

    /// Appends bytes to the last piece by calling `add`. Returns `None` if there is no piece.
    pub fn extend_last<R>(&mut self, add: impl FnOnce(&mut P) -> R) -> Option<R> {
        let last = self.pieces.back_mut()?;
        let before = last.as_ref().len();
        let result = add(last);
        self.end += (last.as_ref().len() - before) as u64;
        Some(result)
    }

    pub fn last(&self) -> Option<&P> {
        self.pieces.back()
    }

    /// Returns the pieces, newest first. The caller may replace a piece by another one with the same bytes.
    pub fn newest_first(&mut self) -> impl Iterator<Item = &mut P> {
        self.pieces.iter_mut().rev()
    }

    /// Returns the number of bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        (self.end - self.sent) as usize
    }

    /// Returns the offset of the first byte that is not sent yet.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of buffered bytes, sent or not.
    pub fn bytes(&self) -> usize {
        (self.end - self.first) as usize
    }

    /// Returns the bytes to send next, in order. No slice is empty.
    pub fn to_send(&self) -> impl Iterator<Item = &[u8]> {
        let (index, skip) = self.next;
        let rest = self.pieces.range(index.min(self.pieces.len())..).map(AsRef::as_ref);
        rest.enumerate().map(move |(i, bytes)| if i == 0 { &bytes[skip..] } else { bytes }).filter(|b| !b.is_empty())
    }

    /// Records that `count` bytes of [`Kept::to_send`] were sent.
    pub fn advance(&mut self, count: usize) {
        self.sent += count as u64;
        self.next.1 += count;
        while let Some(len) = self.pieces.get(self.next.0).map(|p| p.as_ref().len()).filter(|len| self.next.1 >= *len) {
            // The last piece may still grow.
            if self.next.0 + 1 == self.pieces.len() {
                return;
            }
            self.next = (self.next.0 + 1, self.next.1 - len);
        }
    }

    /// Records that the other end has received the first `received` bytes of the stream. `free` gets the pieces that
    /// are removed.
    ///
    /// # Errors
    /// If the bytes were not sent yet; the buffer is then unchanged.
    pub fn acknowledge(&mut self, received: u64, mut free: impl FnMut(P)) -> Result<(), OutOfRange> {
        if received > self.sent {
            return Err(self.out_of_range(received));
        }
        while let Some(len) = self.pieces.front().map(|p| p.as_ref().len() as u64) {
            if self.first + len > received {
                break;
            }
            self.first += len;
            self.next = match self.next.0 {
                // The whole piece was sent.
                0 => (0, 0),
                index => (index - 1, self.next.1),
            };
            self.pieces.pop_front().into_iter().for_each(&mut free);
        }
        Ok(())
    }

    /// Sends all bytes after the first `received` again, on a new connection.
    ///
    /// # Errors
    /// If the bytes were not sent yet, or are not buffered any more; the buffer is then unchanged.
    pub fn rewind(&mut self, received: u64) -> Result<(), OutOfRange> {
        if received < self.first || received > self.sent {
            return Err(self.out_of_range(received));
        }
        self.sent = self.first;
        self.next = (0, 0);
        self.advance((received - self.first) as usize);
        Ok(())
    }

    fn out_of_range(&self, received: u64) -> OutOfRange {
        OutOfRange { received, first: self.first, sent: self.sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsent(kept: &Kept<Vec<u8>>) -> Vec<u8> {
        kept.to_send().flatten().copied().collect()
    }

    #[test]
    fn what_was_not_received_is_sent_again() {
        for cut in 0..=9 {
            let mut kept = Kept::default();
            for piece in [vec![0, 1, 2], vec![3], vec![4, 5, 6, 7, 8]] {
                kept.push(piece);
            }
            kept.advance(9);
            assert_eq!(unsent(&kept), []);
            kept.rewind(cut).unwrap();
            assert_eq!(unsent(&kept), (cut as u8..9).collect::<Vec<_>>(), "from {cut} on");
            kept.push(vec![9]);
            assert_eq!(kept.unsent(), 10 - cut as usize);
        }
    }

    #[test]
    fn every_order_of_sends_acknowledgements_and_cuts_delivers_the_stream() {
        // The test has its own random generator, so that it needs no crate.
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut kept, mut next, mut arrived) = (Kept::<Vec<u8>>::default(), 0u8, Vec::new());
            let mut expected = Vec::new();
            for _ in 0..100 {
                match random(5) {
                    0 => {
                        let piece: Vec<u8> = (0..random(5)).map(|more| next.wrapping_add(more as u8)).collect();
                        next = next.wrapping_add(piece.len() as u8);
                        expected.extend(&piece);
                        kept.push(piece);
                    }
                    1 => {
                        if kept.extend_last(|last| last.push(next)).is_some() {
                            expected.push(next);
                            next = next.wrapping_add(1);
                        }
                    }
                    2 => {
                        let count = random(kept.unsent() as u64 + 1) as usize;
                        arrived.extend(unsent(&kept).into_iter().take(count));
                        kept.advance(count);
                    }
                    3 => kept.acknowledge(random(arrived.len() as u64 + 1), drop).unwrap(),
                    _ => {
                        // Bytes in flight are lost.
                        let lost = random(4).min((arrived.len() as u64).saturating_sub(kept.first));
                        arrived.truncate(arrived.len() - lost as usize);
                        kept.rewind(arrived.len() as u64).unwrap();
                    }
                }
            }
            arrived.extend(unsent(&kept));
            assert_eq!(arrived, expected);
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused_and_change_nothing() {
        let mut kept = Kept::default();
        kept.push(vec![0u8; 10]);
        kept.push(vec![0u8; 10]);
        kept.advance(15);
        assert!(kept.acknowledge(16, drop).is_err());
        assert!(kept.rewind(16).is_err());
        kept.acknowledge(12, drop).unwrap();
        assert_eq!(kept.rewind(9), Err(OutOfRange { received: 9, first: 10, sent: 15 }));
        assert_eq!((kept.bytes(), kept.unsent()), (10, 5));
    }
}
