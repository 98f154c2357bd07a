//! Commands that a thread waits for.

use super::parts::wait::Turn;
use super::pending::{Pending, Waiter};
use super::state::{Progress, Session};
use super::{Known, Reply, Slot, lock};
use crate::Code;
use crate::program::{stats, sys};
use driverapi::errors::CUDA_ERROR_UNKNOWN;
use protocol::{ContextSynchronize, Message, StreamSynchronize, UNCOUNTED};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

impl Session {
    /// Sends a command and waits for its answer, whatever its code.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call<M: Message>(&self, stream_id: u64, message: &M) -> Result<Reply, Code> {
        self.call_frame(M::CODE, stream_id, |w| {
            w.put(message);
        })
    }

    /// Sends a command that is answered when work is complete, and waits for the answer.
    ///
    /// # Errors
    /// The code of work that failed, also of an earlier copy that no call waited for.
    pub fn synchronise<M: Message>(&self, stream_id: u64, message: &M) -> Result<(), Code> {
        let reply = self.call(stream_id, message)?;
        self.synchronised(&reply)
    }

    /// Waits for the earlier work of a stream.
    ///
    /// # Errors
    /// Like [`Session::synchronise`], for one stream.
    pub fn synchronise_stream(&self, stream_id: u64) -> Result<(), Code> {
        self.synchronise_stream_beside(stream_id, || Ok(()))
    }

    /// Synchronises a stream; `meanwhile` is done when the question, and all work before it, has been sent.
    ///
    /// # Errors
    /// As [`Session::synchronise`], or that of `meanwhile`.
    pub fn synchronise_stream_beside(
        &self,
        stream_id: u64,
        meanwhile: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), Code> {
        let before = self.last_command();
        let slot = self.ask(StreamSynchronize::CODE, stream_id, |w| {
            w.put(&StreamSynchronize { launches: self.launches.load(SeqCst) });
        })?;
        meanwhile()?;
        self.flush()?;
        let reply = self.wait(&slot)?;
        self.synchronised(&reply)?;
        self.note_complete(stream_id, Known::Told, before);
        Ok(())
    }

    /// Waits for work that is known to be complete and fully reported by the worker: that needs no answer.
    ///
    /// # Errors
    /// The code of an earlier copy that no call waited for, or the session's sticky error.
    pub fn wait_for_nothing(&self) -> Result<(), Code> {
        self.flush()?;
        self.check()?;
        self.take_late()
    }

    /// Waits for the earlier work of a stream outside of any call: the next call that synchronises reports a failure.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn settle_stream(&self, stream_id: u64) -> Result<(), Code> {
        let reply = self.call(stream_id, &StreamSynchronize { launches: UNCOUNTED })?;
        self.note_late(reply.code);
        Ok(())
    }

    /// Waits for the earlier work of a context.
    ///
    /// # Errors
    /// As [`Session::synchronise`].
    pub fn synchronise_context(&self, context: u64) -> Result<(), Code> {
        let reply = self.call_frame(ContextSynchronize::CODE, 0, |w| {
            w.put(&ContextSynchronize { context, launches: self.launches.load(SeqCst) });
        })?;
        self.synchronised(&reply)
    }

    fn synchronised(&self, reply: &Reply) -> Result<(), Code> {
        match reply.code {
            0 => self.take_late(),
            code => Err(code),
        }
    }

    /// Like [`Session::call`], for a generated function.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<Reply, Code> {
        self.call_frame(number, stream_id, |w| {
            w.raw(payload);
        })
    }

    /// Sends a generated function whose answer is known.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn tell_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<(), Code> {
        let body = |w: &mut protocol::Writer| {
            w.raw(payload);
        };
        self.append(number, stream_id, &[], Some(Pending::Reply(Waiter::Nobody)), false, body).map(drop)
    }

    fn call_frame(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut protocol::Writer)) -> Result<Reply, Code> {
        self.wait(&self.ask(code, stream_id, body)?)
    }

    /// Sends a command, and all before it; its answer comes to the slot.
    fn ask(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut protocol::Writer)) -> Result<Arc<Slot>, Code> {
        let slot = Slot::new();
        self.append(code, stream_id, &[], Some(Pending::Reply(Waiter::Thread(Arc::clone(&slot)))), true, body)?;
        stats::round_trip();
        Ok(slot)
    }

    /// Waits until something is delivered to the slot.
    ///
    /// # Errors
    /// The session's error, if it is lost before.
    pub fn wait(&self, slot: &Arc<Slot>) -> Result<Reply, Code> {
        while self.lead.enter(slot, || self.is_lost(), || self.watch.disarm()) == Turn::Read {
            self.read_until(|| slot.is_finished());
            self.lead.leave(|| self.watch.arm());
        }
        slot.reply().ok_or_else(|| self.check().err().unwrap_or(CUDA_ERROR_UNKNOWN))
    }

    /// Whether something is delivered to the slot within `patience`.
    pub(super) fn is_soon(&self, slot: &Slot, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !slot.is_finished() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.poll(left);
            // Another thread may be the reader.
            std::thread::yield_now();
        }
        true
    }

    /// Takes in what has arrived, or arrives within `patience`, unless another thread is reading.
    pub fn poll(&self, patience: Duration) {
        if self.lead.try_enter(|| self.watch.disarm()) {
            if !patience.is_zero() {
                sys::wait_until_readable(self.fd(), patience);
            }
            self.read_available();
            self.lead.leave(|| self.watch.arm());
        }
    }

    /// Notes completions of this event in `progress` as long as that lives.
    pub fn follow_event(&self, event: u64, progress: &Arc<Progress>) {
        lock(&self.events).insert(event, Arc::downgrade(progress));
    }

    pub fn forget_event(&self, event: u64) {
        lock(&self.events).remove(&event);
    }
}
