//! The outgoing side of a session: it appends commands to the outbox and sends the outbox.

use super::parts::outbox::{COPIED_TAIL, FULL, Outbox};
use super::pending::Pending;
use super::state::{QUIET_SECONDS, Session};
use crate::Code;
use crate::boundary;
use crate::locks::Guard;
use crate::program::{log, stats, sys};
use driverapi::errors::{CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_NOT_SUPPORTED};
use protocol::{
    ACKNOWLEDGE_BYTES, Acknowledge, Close, GraphLaunch, Header, Launch, Message, Probe, StreamDestroy, StreamFence,
    StreamQuery, StreamSynchronize, Writer, function_name, message_name, since,
};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// The interval at which the background thread looks for waiting commands while it ticks.
const TICK: Duration = Duration::from_micros(75);
/// The number of ticks without waiting commands after which the background thread sleeps until a command waits.
const IDLE_TICKS: u32 = 20;

/// The maximum number of unsent bytes while nothing can be sent. A thread with more waits until the session has a
/// connection again, or until the suspension of the share ends.
const MOST_AHEAD: usize = 16 << 20;
/// The maximum time that the background thread waits for room in the socket before it checks the session again.
const ROOM: Duration = Duration::from_secs(1);

impl Session {
    /// Appends a command that no thread waits for. Returns the number of the command.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post<M: Message>(&self, stream_id: u64, message: &M) -> Result<u64, Code> {
        self.post_borrowed(stream_id, message, &[])
    }

    /// Like [`Session::post`], with bytes after the fields of the message.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_tail<M: Message>(&self, stream_id: u64, message: &M, tail: &[u8]) -> Result<u64, Code> {
        let number = self.post_borrowed(stream_id, message, tail);
        if tail.len() > COPIED_TAIL {
            self.own_tails();
        }
        number
    }

    /// Like [`Session::post_tail`], without a copy of the tail. The tail must not change until [`Session::own_tails`].
    pub(super) fn post_borrowed<M: Message>(&self, stream_id: u64, message: &M, tail: &[u8]) -> Result<u64, Code> {
        self.append(M::CODE, stream_id, tail, None, false, |w| {
            w.put(message);
        })
    }

    /// Copies the borrowed tails that are still in the outbox, so that their owners may change the bytes. In a session
    /// that cannot reconnect, only the unsent tails of a suspended share are there.
    pub(super) fn own_tails(&self) {
        if self.may_reconnect() {
            // First handle acknowledgements: bytes that the worker has received need no copy.
            self.poll(Duration::ZERO);
        }
        let mut outbox = self.outbox.lock();
        outbox.trim(self.acknowledged.load(Relaxed));
        outbox.own();
    }

    /// Like [`Session::post`], for an encoded call of a generated function.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<u64, Code> {
        self.append(number, stream_id, &[], None, false, |w| {
            w.raw(payload);
        })
    }

    /// Appends a command that uses device memory. `body` writes its payload.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_work(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut Writer)) -> Result<u64, Code> {
        let number = self.append(code, stream_id, &[], None, false, body)?;
        self.last_work.fetch_max(number, SeqCst);
        Ok(number)
    }

    /// Appends a command with the next number, and sends the outbox if that is due.
    pub(super) fn append(
        &self,
        code: u32,
        stream_id: u64,
        tail: &[u8],
        pending: Option<Pending>,
        flush: bool,
        body: impl FnOnce(&mut Writer),
    ) -> Result<u64, Code> {
        if let Err(code) = self.check().and_then(|()| self.check_wire(code)) {
            pending.into_iter().for_each(|pending| pending.reject(code));
            return Err(code);
        }
        let mut outbox = self.outbox.lock();
        outbox.last += 1;
        let number = outbox.last;
        if stream_id != 0 && code != StreamSynchronize::CODE && code != StreamQuery::CODE {
            outbox.streams.note(stream_id, number);
        } else if pending.is_none() {
            outbox.streams.note_loose(number);
        }
        if code == Launch::CODE || code == GraphLaunch::CODE {
            self.launches.fetch_add(1, SeqCst);
        }
        let (awaited, before) = (pending.is_some(), outbox.kept.unsent());
        if let Some(pending) = pending {
            self.pending.lock().insert(number, pending);
        }
        self.frame(&mut outbox, Header { code, seq: number, stream_id, ..Header::default() }, tail.len(), body);
        // The tail of a copy's frame does not count, because copies have their own limit (`Window`).
        let bytes = outbox.kept.unsent().saturating_sub(before);
        outbox.tail(tail);
        let queued =
            ![StreamFence::CODE, StreamSynchronize::CODE, StreamQuery::CODE, StreamDestroy::CODE].contains(&code);
        let fence_is_due = queued && stream_id != 0 && outbox.queues.note(stream_id, bytes);
        self.queued.store(outbox.queues.together(), Relaxed);
        stats::command();
        let unsent = outbox.kept.unsent();
        let sent = if flush || tail.len() > COPIED_TAIL || unsent > MOST_AHEAD {
            self.send(outbox)
        } else {
            self.wake_sender(&mut outbox);
            let sent = if unsent > FULL && !outbox.full { self.send_some(&mut outbox) } else { Ok(()) };
            drop(outbox);
            sent
        };
        if let (true, Err(code)) = (awaited, sent) {
            let pending = self.pending.lock().remove(&number);
            pending.into_iter().for_each(|pending| pending.reject(code));
        }
        sent?;
        if fence_is_due {
            self.fence_queue(stream_id)?;
        }
        Ok(number)
    }

    /// Fails if the worker's protocol version does not have this command.
    fn check_wire(&self, code: u32) -> Result<(), Code> {
        if since(code) <= self.wire {
            return Ok(());
        }
        let (name, peer, wire) = (function_name(code).or(message_name(code)), &self.peer, self.wire);
        log::error_unless_repeated(&format!(
            "{} came with wire version {}, appliance {peer} speaks {wire}: upgrade the appliance; the program gets \
             CUDA_ERROR_NOT_SUPPORTED",
            name.unwrap_or("a command"),
            since(code)
        ));
        boundary::has_said();
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn wake_sender(&self, outbox: &mut Outbox) {
        if !std::mem::replace(&mut outbox.ticking, true) {
            self.wake.wake();
        }
    }

    fn frame(&self, outbox: &mut Outbox, header: Header, tail: usize, body: impl FnOnce(&mut Writer)) {
        let ack = self.received.load(Relaxed);
        self.told.store(ack, Relaxed);
        outbox.frame(Header { ack, ..header }, tail, body);
    }

    /// Sends all appended frames.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn flush(&self) -> Result<(), Code> {
        self.send(self.outbox.lock())
    }

    /// Sends all waiting frames. Without a connection the frames stay in the outbox. Blocks if there are too many.
    fn send(&self, mut outbox: Guard<Outbox>) -> Result<(), Code> {
        while (!outbox.connected || self.held.is_on()) && outbox.kept.unsent() > MOST_AHEAD && !self.is_lost() {
            outbox = outbox.wait(&self.reconnected);
        }
        self.send_while(&mut outbox, true)
    }

    /// Sends as many bytes as the socket accepts without blocking. The background thread sends the others.
    fn send_some(&self, outbox: &mut Outbox) -> Result<(), Code> {
        self.send_while(outbox, false)
    }

    fn send_while(&self, outbox: &mut Outbox, may_wait: bool) -> Result<(), Code> {
        outbox.trim(self.acknowledged.load(Relaxed));
        outbox.full = false;
        while outbox.connected && !self.held.is_on() && !outbox.full && outbox.kept.unsent() > 0 {
            let pieces = outbox.kept.to_send();
            match if may_wait { sys::send(self.fd(), pieces) } else { sys::send_some(self.fd(), pieces) } {
                Ok(count) => {
                    stats::sent(count);
                    outbox.kept.advance(count);
                    if !self.may_reconnect() {
                        let sent = outbox.kept.sent();
                        outbox.trim(sent);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => outbox.full = true,
                Err(_) => {
                    // The reader notices the closed socket, and reconnects or ends the session. Only the reader may do
                    // that.
                    outbox.connected = false;
                    sys::shut_down(self.fd());
                }
            }
        }
        let keeps = outbox.connected || (self.may_reconnect() && !self.is_lost());
        if keeps {
            return Ok(());
        }
        outbox.give_up();
        // The reader has not noticed yet. All calls from now on must return the same error.
        let _ = self.failure.compare_exchange(0, CUDA_ERROR_EXTERNAL_DEVICE, SeqCst, SeqCst);
        self.check()
    }

    /// Continues the session with a new connection. `received` is the number of bytes that the worker has received.
    /// Only the reader calls this. The reader must not block, so the background thread sends the bytes that the worker
    /// did not receive.
    ///
    /// # Errors
    /// If `received` is not a possible number of bytes, or a system call fails.
    pub(super) fn go_on_with(&self, socket: &OwnedFd, received: u64) -> Result<(), String> {
        let mut outbox = self.outbox.lock();
        outbox.kept.rewind(received).map_err(|error| error.to_string())?;
        sys::replace(self.fd(), socket.as_raw_fd()).map_err(|error| error.to_string())?;
        // A thread that failed before this closed the connection that was replaced.
        self.check_threads()?;
        sys::receive_timeout(self.fd(), Some(QUIET_SECONDS));
        self.watch.renew().map_err(|error| error.to_string())?;
        (outbox.connected, outbox.ticking) = (true, true);
        drop(outbox);
        self.check_shared();
        self.end_stripes();
        self.reconnected.notify_all();
        self.wake.wake();
        Ok(())
    }

    /// Acknowledges received bytes if an acknowledgement is overdue and the worker keeps sent bytes. Called by the
    /// reader, so it never blocks.
    pub(super) fn acknowledge_if_due(&self, received: u64) {
        self.received.store(received, Relaxed);
        if !self.may_reconnect() || received - self.told.load(Relaxed) < ACKNOWLEDGE_BYTES {
            return;
        }
        match self.outbox.try_lock() {
            Some(mut outbox) if outbox.connected && outbox.kept.unsent() == 0 => {
                self.say(&mut outbox, Acknowledge::CODE);
            }
            // Another thread is sending. Its next frames carry the acknowledgement; the frames that are already encoded
            // do not.
            _ if !self.must_acknowledge.swap(true, SeqCst) => self.wake.wake(),
            _ => {}
        }
    }

    /// Sends a probe to check that the peer is alive. The reader calls this, so it never blocks. If another thread
    /// holds the outbox, that thread's frames serve as the probe.
    pub(super) fn probe(&self) {
        if let Some(mut outbox) = self.outbox.try_lock() {
            self.say(&mut outbox, Probe::CODE);
        }
    }

    /// Like [`Session::probe`], but waits for the outbox. For threads that may block.
    pub(super) fn probe_surely(&self) {
        self.say(&mut self.outbox.lock(), Probe::CODE);
    }

    /// Sends a frame that is not a command. If the socket does not accept all bytes, the background thread sends the
    /// rest.
    fn say(&self, outbox: &mut Outbox, code: u32) {
        self.frame(outbox, Header { code, ..Header::default() }, 0, |_| ());
        let sent = if outbox.connected { sys::send_some(self.fd(), outbox.kept.to_send()).unwrap_or(0) } else { 0 };
        outbox.kept.advance(sent);
        if outbox.kept.unsent() > 0 {
            self.wake_sender(outbox);
        }
    }

    pub(super) fn flush_in_background(&self) {
        sys::precise_sleeps();
        loop {
            self.wake.wait();
            let mut outbox = self.outbox.lock();
            if self.held.take_released() {
                self.reconnected.notify_all();
                outbox.ticking = true;
            }
            let mut idle = 0;
            while outbox.ticking || self.must_acknowledge.load(SeqCst) {
                if self.must_acknowledge.swap(false, SeqCst) {
                    self.frame(&mut outbox, Header { code: Acknowledge::CODE, ..Header::default() }, 0, |_| ());
                }
                let waiting = outbox.kept.unsent();
                if self.send_some(&mut outbox).is_err() {
                    return;
                }
                // A thread that waits for each of its commands sends them itself and does not need this thread.
                idle = if outbox.kept.unsent() < waiting { 0 } else { idle + 1 };
                if idle >= IDLE_TICKS && !outbox.full {
                    outbox.ticking = false;
                    break;
                }
                let full = outbox.full;
                drop(outbox);
                // The lock is not held here, so the program continues.
                if full {
                    sys::wait_until_writable(self.fd(), ROOM);
                } else {
                    std::thread::sleep(TICK);
                }
                outbox = self.outbox.lock();
            }
        }
    }

    /// Sends the last frame without blocking. Returns whether all bytes were sent.
    pub(super) fn close(&self) -> bool {
        if let Some(mut outbox) = self.outbox.try_lock()
            && !self.is_lost()
            && outbox.connected
        {
            outbox.last += 1;
            let seq = outbox.last;
            self.frame(&mut outbox, Header { code: Close::CODE, seq, ..Header::default() }, 0, |w| {
                w.put(&Close {});
            });
            let sent = sys::send_some(self.fd(), outbox.kept.to_send()).unwrap_or(0);
            outbox.kept.advance(sent);
            return outbox.kept.unsent() == 0 && !self.held.is_on();
        }
        false
    }
}
