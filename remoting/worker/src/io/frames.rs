//! Splits incoming bytes into frames. Large payloads are received directly into the memory that will be used.

use crate::driver::staging::Buffer;
use protocol::{FrameError, HEADER_BYTES, Header};

const BUFFER: usize = 256 << 10;
/// The payload size in bytes from which a payload gets its own memory before it has arrived.
pub const LARGE_PAYLOAD: usize = 16 << 10;
/// The number of bytes of a large payload that are read before its memory is chosen.
pub const PEEK: usize = 8;

#[derive(Debug)]
pub enum Payload {
    Heap(Vec<u8>),
    Pinned(Buffer),
}

impl Payload {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Heap(bytes) => bytes,
            Payload::Pinned(buffer) => buffer.bytes(0..buffer.len()),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Payload::Heap(bytes) => bytes,
            Payload::Pinned(buffer) => buffer.bytes_mut(),
        }
    }
}

struct Partial {
    header: Header,
    payload: Payload,
    filled: usize,
}

pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    partial: Option<Partial>,
}

impl Default for FrameReader {
    fn default() -> Self {
        FrameReader { buffer: vec![0; BUFFER], start: 0, end: 0, partial: None }
    }
}

impl FrameReader {
    /// Returns the buffer for the next received bytes. It is never empty after `next` returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        if let Some(partial) = &mut self.partial {
            return &mut partial.payload.bytes_mut()[partial.filled..];
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Records that `count` bytes were written to the front of `space`.
    pub fn filled(&mut self, count: usize) {
        match &mut self.partial {
            Some(partial) => partial.filled += count,
            None => self.end += count,
        }
    }

    /// Returns the number of bytes that were received after the last frame that was taken.
    pub fn unread(&self) -> usize {
        self.end - self.start + self.partial.as_ref().map_or(0, |partial| HEADER_BYTES + partial.filled)
    }

    /// Returns the bytes that `unread` counts.
    pub fn rest(&self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(self.unread());
        if let Some(partial) = &self.partial {
            rest.extend_from_slice(&partial.header.encode());
            rest.extend_from_slice(&partial.payload.bytes()[..partial.filled]);
        }
        rest.extend_from_slice(&self.buffer[self.start..self.end]);
        rest
    }

    /// Returns the next complete frame, or `None` if none has arrived. `place` gets the header and the first bytes of a
    /// large payload, and may return page-locked memory for the payload.
    ///
    /// # Errors
    /// The same errors as [`Header::decode`].
    pub fn next(
        &mut self,
        place: impl FnOnce(&Header, &[u8; PEEK]) -> Option<Buffer>,
    ) -> Result<Option<(Header, Payload)>, FrameError> {
        if let Some(partial) = self.partial.take_if(|p| p.filled == p.header.len as usize) {
            return Ok(Some((partial.header, partial.payload)));
        }
        if self.partial.is_some() {
            return Ok(None);
        }
        let rest = &self.buffer[self.start..self.end];
        let Some(head) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head)?;
        let (len, body) = (header.len as usize, &rest[HEADER_BYTES..]);
        if len < LARGE_PAYLOAD {
            if body.len() < len {
                return Ok(None);
            }
            let payload = Payload::Heap(body[..len].to_vec());
            self.start += HEADER_BYTES + len;
            return Ok(Some((header, payload)));
        }
        let Some(first) = body.first_chunk::<PEEK>() else { return Ok(None) };
        let mut payload = match place(&header, first) {
            Some(buffer) if buffer.len() == len => Payload::Pinned(buffer),
            _ => Payload::Heap(vec![0; len]),
        };
        let filled = body.len().min(len);
        payload.bytes_mut()[..filled].copy_from_slice(&body[..filled]);
        self.start += HEADER_BYTES + filled;
        if filled == len {
            return Ok(Some((header, payload)));
        }
        self.partial = Some(Partial { header, payload, filled });
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(lengths: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, len) in lengths.iter().enumerate() {
            let header = Header { len: *len as u32, code: 1, seq: i as u64, ..Default::default() };
            bytes.extend_from_slice(&header.encode());
            bytes.extend((0..*len).map(|b| (b + i) as u8));
        }
        bytes
    }

    #[test]
    fn frames_of_all_sizes_arrive_in_any_pieces() {
        let lengths = [0, 1, LARGE_PAYLOAD - 1, LARGE_PAYLOAD, BUFFER, 3 * BUFFER + 1, 5];
        let bytes = stream(&lengths);
        for step in [1, 31, 4096, bytes.len()] {
            let (mut reader, mut at, mut seen) = (FrameReader::default(), 0, 0);
            while seen < lengths.len() {
                while let Some((header, payload)) = reader.next(|_, _| None).unwrap() {
                    assert_eq!(header.seq, seen as u64);
                    assert_eq!(payload.bytes().len(), lengths[seen]);
                    assert!(payload.bytes().iter().enumerate().all(|(b, v)| *v == (b + seen) as u8), "step {step}");
                    seen += 1;
                }
                let space = reader.space();
                let count = space.len().min(step).min(bytes.len() - at);
                assert!(count > 0 || seen == lengths.len());
                space[..count].copy_from_slice(&bytes[at..at + count]);
                reader.filled(count);
                at += count;
            }
        }
    }

    #[test]
    fn an_oversized_frame_is_refused_before_memory_is_taken() {
        let mut reader = FrameReader::default();
        let header = Header { len: u32::MAX, ..Default::default() }.encode();
        reader.space()[..HEADER_BYTES].copy_from_slice(&header);
        reader.filled(HEADER_BYTES);
        assert!(reader.next(|_, _| None).is_err());
    }
}
