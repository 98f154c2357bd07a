//! The receive buffer of a session's connection, and the frames in this buffer.

use carrier::{Spin, TO_WAKE};
use protocol::{HEADER_BYTES, Header};

pub const BUFFER: usize = 256 << 10;
/// Runs longer than this number of bytes are received directly into their destination, others through the buffer.
const DIRECT: usize = 16 << 10;

/// The reason why the session cannot continue.
pub type Broken = String;

/// A source of received bytes: the session's connection.
pub trait Incoming {
    /// Receives from 1 to `len` bytes. `so_far` is the number of bytes received before this call. Returns `None` if no
    /// byte is available and `wait` is not set.
    ///
    /// # Errors
    /// If the session cannot continue.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn receive(&self, so_far: u64, to: *mut u8, len: usize, wait: bool) -> Result<Option<usize>, Broken>;
}

/// The maximum duration of a busy wait for an answer. The work of a GPU and its mirrors takes longer than a command.
const AWAKE: std::time::Duration = TO_WAKE.saturating_mul(2);

pub struct Receiver {
    /// The number of bytes received since the session began.
    received: u64,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    spin: Spin,
}

impl Default for Receiver {
    fn default() -> Self {
        Receiver { received: 0, buffer: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0, spin: Spin::new(AWAKE) }
    }
}

impl Receiver {
    fn available(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether a whole frame is in the buffer. The socket gives no event for such a frame.
    pub fn has_frame(&self) -> bool {
        let Some(header) = self.buffer[self.start..self.end].first_chunk() else { return false };
        // An invalid header counts as a frame. `header` then reports the error.
        Header::decode(header).map_or(true, |header| self.available() >= HEADER_BYTES + header.len as usize)
    }

    /// Receives at least one byte into the buffer. Returns false if no byte is available and `wait` is not set.
    fn fill(&mut self, session: &impl Incoming, wait: bool) -> Result<bool, Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == BUFFER {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        // SAFETY: `room` is memory of this receiver.
        let count = unsafe { session.receive(self.received, room.as_mut_ptr(), room.len(), wait)? };
        self.end += count.unwrap_or(0);
        self.received += count.unwrap_or(0) as u64;
        Ok(count.is_some())
    }

    /// Receives until `len` bytes are in the buffer. `len` is at most the size of the buffer.
    pub fn need(&mut self, session: &impl Incoming, len: usize) -> Result<(), Broken> {
        if self.start + len > BUFFER {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.available() < len {
            self.fill(session, true)?;
        }
        Ok(())
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        out
    }

    /// Takes the next `len` bytes out of the buffer, which must contain them (see [`Receiver::need`]).
    pub fn next(&mut self, len: usize) -> &[u8] {
        self.start += len;
        &self.buffer[self.start - len..self.start]
    }

    /// Returns the number of bytes received since the session began.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Moves the next `len` bytes to `to`. Waits for those that have not arrived.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    pub unsafe fn take_to(&mut self, session: &impl Incoming, mut to: *mut u8, mut len: usize) -> Result<(), Broken> {
        while len > 0 {
            let count = if self.available() > 0 || len < DIRECT {
                if self.available() == 0 {
                    self.fill(session, true)?;
                }
                let count = self.available().min(len);
                // SAFETY: `count <= len`, and the buffer is not the program's memory.
                unsafe { std::ptr::copy_nonoverlapping(self.buffer[self.start..].as_ptr(), to, count) };
                self.start += count;
                count
            } else {
                // SAFETY: the caller vouches for `to` and `len`.
                let count = unsafe { session.receive(self.received, to, len, true)? };
                self.received += count.unwrap_or(0) as u64;
                count.unwrap_or(0)
            };
            // SAFETY: the address lies inside the memory that the caller vouches for, or just behind it.
            to = unsafe { to.add(count) };
            len -= count;
        }
        Ok(())
    }

    /// Waits for a frame: first in a busy wait, then asleep.
    fn wait_for_frame(&mut self, session: &impl Incoming) -> Result<(), Broken> {
        let mut there = false;
        while !there && self.spin.goes_on() {
            there = self.fill(session, false)?;
            if !there {
                std::thread::yield_now();
            }
        }
        if !there {
            self.fill(session, true)?;
        }
        self.spin.came();
        Ok(())
    }

    /// Returns the next frame's header, or `None` if no byte has arrived and `wait` is not set. If the first byte has
    /// arrived, waits for the whole header.
    pub fn header(&mut self, session: &impl Incoming, wait: bool) -> Result<Option<Header>, Broken> {
        if self.available() == 0 {
            if wait {
                self.wait_for_frame(session)?;
            } else if !self.fill(session, false)? {
                return Ok(None);
            }
        }
        self.need(session, HEADER_BYTES)?;
        Header::decode(&self.take()).map(Some).map_err(|error| error.to_string())
    }
}
