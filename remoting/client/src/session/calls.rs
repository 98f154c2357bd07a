//! Commands whose answer the calling thread waits for.

use super::parts::wait::Turn;
use super::pending::{Pending, Waiter};
use super::state::{Progress, Session};
use super::{Known, Reply, Slot, lock};
use crate::Code;
use crate::locks::{Wait, assert_may_wait};
use crate::program::{stats, sys};
use driverapi::errors::CUDA_ERROR_UNKNOWN;
use driverapi::rules::{Rule, kept};
use protocol::{ContextSynchronize, Message, StreamSynchronize, UNCOUNTED};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

impl Session {
    /// Sends a command and waits for its answer. Returns the answer even if its code is an error.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call<M: Message>(&self, stream_id: u64, message: &M) -> Result<Reply, Code> {
        self.call_frame(M::CODE, stream_id, |w| {
            w.put(message);
        })
    }

    /// Sends a command that the worker answers when the work before it is complete, and waits for the answer.
    ///
    /// # Errors
    /// The code of failed work, or of an earlier failed copy that no call waited for.
    pub fn synchronise<M: Message>(&self, stream_id: u64, message: &M) -> Result<(), Code> {
        assert_may_wait(Wait::Work);
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

    /// Synchronises a stream. Calls `meanwhile` after the request, and all commands before it, were sent.
    ///
    /// # Errors
    /// Those of [`Session::synchronise`], or the error of `meanwhile`.
    pub fn synchronise_stream_beside(
        &self,
        stream_id: u64,
        meanwhile: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), Code> {
        assert_may_wait(Wait::Work);
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

    /// Finishes a synchronisation without a round trip. The caller knows that all work is complete and that the worker
    /// has reported its results.
    ///
    /// # Errors
    /// The code of an earlier failed copy that no call waited for, or the session's sticky error.
    pub fn wait_for_nothing(&self) -> Result<(), Code> {
        if kept(Rule::IdleFlush) {
            self.flush()?;
        }
        if kept(Rule::IdleSticky) {
            self.check()?;
        }
        if kept(Rule::IdleLate) { self.take_late() } else { Ok(()) }
    }

    /// Waits for the earlier work of a stream, but leaves its failure to the next synchronising call.
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
    /// Those of [`Session::synchronise`].
    pub fn synchronise_context(&self, context: u64) -> Result<(), Code> {
        assert_may_wait(Wait::Work);
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

    /// Like [`Session::call`], for an encoded call of a generated function.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<Reply, Code> {
        self.call_frame(number, stream_id, |w| {
            w.raw(payload);
        })
    }

    /// Sends an encoded call of a generated function whose answer the client knows already, and ignores the answer.
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

    /// Sends a command and all commands before it. Returns the slot for its answer.
    fn ask(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut protocol::Writer)) -> Result<Arc<Slot>, Code> {
        let slot = Slot::new();
        self.append(code, stream_id, &[], Some(Pending::Reply(Waiter::Thread(Arc::clone(&slot)))), true, body)?;
        stats::round_trip();
        Ok(slot)
    }

    /// Waits until the slot has its answer. The calling thread may become the reader of the connection.
    ///
    /// # Errors
    /// The session's error, if the session is lost first.
    pub fn wait(&self, slot: &Arc<Slot>) -> Result<Reply, Code> {
        assert_may_wait(Wait::Answer);
        while self.lead.enter(slot, || self.is_lost(), || self.watch.disarm()) == Turn::Read {
            self.lead_while(|| self.read_until(|| slot.is_finished()));
        }
        slot.reply().ok_or_else(|| self.check().err().unwrap_or(CUDA_ERROR_UNKNOWN))
    }

    /// Waits at most `patience`. Returns whether the slot has its answer.
    pub(super) fn is_soon(&self, slot: &Slot, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !slot.is_finished() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.poll(left);
            // Another thread may be the reader, so let it run.
            std::thread::yield_now();
        }
        true
    }

    /// Handles the frames that have arrived. If there are none, waits at most `patience` for one. Does nothing while
    /// another thread reads.
    pub fn poll(&self, patience: Duration) {
        if self.lead.try_enter(|| self.watch.disarm()) {
            self.lead_while(|| {
                if !patience.is_zero() {
                    sys::wait_until_readable(self.fd(), patience);
                }
                self.read_available();
            });
        }
    }

    /// Stores completions of this event in `progress` until `progress` is dropped.
    pub fn follow_event(&self, event: u64, progress: &Arc<Progress>) {
        lock(&self.events).insert(event, Arc::downgrade(progress));
    }

    pub fn forget_event(&self, event: u64) {
        lock(&self.events).remove(&event);
    }
}
