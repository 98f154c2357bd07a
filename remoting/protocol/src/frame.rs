//! Frames: a 32-byte header, then the payload. The layout is the same in both directions and on every carrier.

use crate::wire::Reader;

pub const HEADER_BYTES: usize = 32;

/// The maximum size of a payload in bytes. A header with a larger size is refused before memory is allocated.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// The header before every payload.
///
/// | bytes | field | |
/// |---|---|---|
/// | 0..4 | `len` | bytes of payload that follow |
/// | 4..8 | `code` | a function number of the registry, or a command, reply or push of [`crate::message`] |
/// | 8..16 | `seq` | client: 1, 2, 3, … in a session; worker: the answered command, or 0; 0 in `Acknowledge` |
/// | 16..24 | `stream_id` | the stream that orders the command, or 0 |
/// | 24..32 | `ack` | bytes of the session that the sender had received when it created the frame |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    pub len: u32,
    pub code: u32,
    pub seq: u64,
    pub stream_id: u64,
    pub ack: u64,
}

/// An error of a byte stream that contains an invalid header. The connection must be closed, because the next frame
/// cannot be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    TooLong(u32),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FrameError::TooLong(len) = self;
        write!(f, "a frame of {len} bytes is longer than the {MAX_PAYLOAD} bytes that both ends agreed on")
    }
}

impl std::error::Error for FrameError {}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..8].copy_from_slice(&self.code.to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.stream_id.to_le_bytes());
        out[24..].copy_from_slice(&self.ack.to_le_bytes());
        out
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// `TooLong` if the payload would exceed [`MAX_PAYLOAD`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let mut r = Reader::new(bytes);
        let mut u32_ = || r.get::<u32>().unwrap_or_default();
        let (len, code) = (u32_(), u32_());
        let mut u64_ = || r.get::<u64>().unwrap_or_default();
        let (seq, stream_id, ack) = (u64_(), u64_(), u64_());
        if len as usize > MAX_PAYLOAD {
            return Err(FrameError::TooLong(len));
        }
        Ok(Header { len, code, seq, stream_id, ack })
    }
}

/// Splits a byte stream into frames. The stream may arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame, or `None` if it has not arrived completely.
    ///
    /// # Errors
    /// The errors of [`Header::decode`]. After an error the decoder cannot be used any more.
    pub fn next_frame(&mut self) -> Result<Option<(Header, &[u8])>, FrameError> {
        let rest = &self.buffer[self.start..];
        let Some(head) = rest.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head)?;
        let end = HEADER_BYTES + header.len as usize;
        if rest.len() < end {
            return Ok(None);
        }
        let from = self.start + HEADER_BYTES;
        self.start += end;
        Ok(Some((header, &self.buffer[from..from + header.len as usize])))
    }
}
