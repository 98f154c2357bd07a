//! The outgoing side of a session.

use super::streams::Streams;
use super::{Pending, Session, lock};
use crate::Code;
use crate::{stats, sys};
use driverapi::errors::CUDA_ERROR_EXTERNAL_DEVICE;
use protocol::{Close, GraphLaunch, HEADER_BYTES, Header, Launch, Message, StreamQuery, StreamSynchronize, Writer};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// More waiting bytes than this leave at once.
const FULL: usize = 64 << 10;
/// Tails longer than this are sent from where they are.
const COPIED_TAIL: usize = 16 << 10;
/// How often waiting commands are looked for while there are some.
const TICK: Duration = Duration::from_micros(75);
/// Ticks without a command after which the background thread sleeps until there is one.
const IDLE_TICKS: u32 = 20;

#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    last: u64,
    pub streams: Streams,
    /// The background thread ticks; else it sleeps.
    ticking: bool,
}

impl Outbox {
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends a frame whose payload is what `body` writes and `tail` bytes that follow later.
    fn frame(&mut self, code: u32, stream_id: u64, ack: u64, tail: usize, body: impl FnOnce(&mut Writer)) {
        let mut writer = Writer { bytes: std::mem::take(&mut self.bytes) };
        let start = writer.bytes.len();
        writer.raw(&[0; HEADER_BYTES]);
        body(&mut writer);
        self.bytes = writer.bytes;
        let len = (self.bytes.len() - start - HEADER_BYTES + tail) as u32;
        let header = Header { len, code, seq: self.last, stream_id, ack };
        self.bytes[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }
}

impl Session {
    /// Appends a command that nobody waits for.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post<M: Message>(&self, stream_id: u64, message: &M) -> Result<u64, Code> {
        self.post_tail(stream_id, message, &[])
    }

    /// As [`Session::post`], with bytes that follow the message's fields.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_tail<M: Message>(&self, stream_id: u64, message: &M, tail: &[u8]) -> Result<u64, Code> {
        self.append(M::CODE, stream_id, tail, None, false, |w| {
            w.put(message);
        })
    }

    /// As [`Session::post`] for a generated function.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<u64, Code> {
        self.append(number, stream_id, &[], None, false, |w| {
            w.raw(payload);
        })
    }

    /// Appends a command that uses device memory, written by `body`.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_work(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut Writer)) -> Result<u64, Code> {
        let number = self.append(code, stream_id, &[], None, false, body)?;
        self.last_work.fetch_max(number, SeqCst);
        Ok(number)
    }

    /// Appends a command, gives it its number and sends what has to leave.
    pub(super) fn append(
        &self,
        code: u32,
        stream_id: u64,
        tail: &[u8],
        pending: Option<Pending>,
        flush: bool,
        body: impl FnOnce(&mut Writer),
    ) -> Result<u64, Code> {
        if let Err(code) = self.check() {
            pending.into_iter().for_each(|pending| pending.reject(code));
            return Err(code);
        }
        let mut outbox = lock(&self.outbox);
        outbox.last += 1;
        let number = outbox.last;
        if stream_id != 0 && code != StreamSynchronize::CODE && code != StreamQuery::CODE {
            outbox.streams.note(stream_id, number);
        }
        if code == Launch::CODE || code == GraphLaunch::CODE {
            self.launches.fetch_add(1, SeqCst);
        }
        let awaited = pending.is_some();
        if let Some(pending) = pending {
            lock(&self.pending).insert(number, pending);
        }
        outbox.frame(code, stream_id, self.acknowledged.load(SeqCst), tail.len(), body);
        stats::command();
        let sent = if tail.len() > COPIED_TAIL {
            self.send(&mut outbox, tail)
        } else {
            outbox.bytes.extend_from_slice(tail);
            if flush || outbox.bytes.len() > FULL {
                self.send(&mut outbox, &[])
            } else {
                if !outbox.ticking {
                    outbox.ticking = true;
                    self.outbox_filled.notify_one();
                }
                Ok(())
            }
        };
        drop(outbox);
        if let (true, Err(code)) = (awaited, sent) {
            let pending = lock(&self.pending).remove(&number);
            pending.into_iter().for_each(|pending| pending.reject(code));
        }
        sent.map(|()| number)
    }

    /// Sends everything that was appended.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn flush(&self) -> Result<(), Code> {
        self.send(&mut lock(&self.outbox), &[])
    }

    fn send(&self, outbox: &mut MutexGuard<'_, Outbox>, tail: &[u8]) -> Result<(), Code> {
        if outbox.bytes.is_empty() && tail.is_empty() {
            return Ok(());
        }
        stats::sent(outbox.bytes.len() + tail.len());
        let result = sys::send_all(self.fd(), &outbox.bytes, tail);
        outbox.bytes.clear();
        result.map_err(|_| {
            // The reader notices, says so once, and fails the session: only it may do that.
            sys::shut_down(self.fd());
            self.check().err().unwrap_or(CUDA_ERROR_EXTERNAL_DEVICE)
        })
    }

    pub(super) fn flush_in_background(&self) {
        sys::precise_sleeps();
        let mut outbox = lock(&self.outbox);
        loop {
            while !outbox.ticking {
                outbox = self.outbox_filled.wait(outbox).unwrap_or_else(PoisonError::into_inner);
            }
            let mut idle = 0;
            let mut last = outbox.last;
            while idle < IDLE_TICKS {
                drop(outbox);
                std::thread::sleep(TICK);
                outbox = lock(&self.outbox);
                idle = if outbox.last == last { idle + 1 } else { 0 };
                last = outbox.last;
                if self.send(&mut outbox, &[]).is_err() {
                    return;
                }
            }
            outbox.ticking = false;
        }
    }

    /// The last frame, if the socket takes it at once.
    pub(super) fn close(&self) {
        if let Ok(mut outbox) = self.outbox.try_lock()
            && !self.is_lost()
        {
            outbox.last += 1;
            outbox.frame(Close::CODE, 0, self.acknowledged.load(SeqCst), 0, |w| {
                w.put(&Close {});
            });
            sys::send_some(self.fd(), &outbox.bytes);
            outbox.bytes.clear();
        }
    }
}
