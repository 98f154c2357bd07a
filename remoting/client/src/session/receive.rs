//! The incoming side of a session. Only the current reader ([`super::parts::wait::Lead`]) runs this code.

use super::parts::receiver::{BUFFER, Broken, Incoming, Receiver};
use super::pending::{Pending, Source, Waiter};
use super::state::{News, Session};
use super::{HostBox, Reply, lock};
use crate::program::{log, process, stats, sys};
use protocol::{
    Acknowledge, Callback, Consumed, Ending, EventDone, Fenced, Header, Held, HostBytes, Message, MirrorsTold,
    NeedBytes, Notice, Text, message_name,
};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// The size in bytes of the field before the payload of `HostBytes`.
const OFFSET_BYTES: usize = 8;

/// The interval without received bytes after which the background thread checks whether the worker reads.
const WINDOW_EVERY: Duration = Duration::from_secs(2);

impl Incoming for Session {
    /// Receives from the connection. If the connection breaks, this function reconnects and continues, so its caller
    /// does not notice, even within a frame. It also replaces a connection on which a probe gets no answer, because a
    /// proxy on the way may have lost bytes.
    unsafe fn receive(&self, so_far: u64, to: *mut u8, len: usize, wait: bool) -> Result<Option<usize>, Broken> {
        let (mut asked, mut silent) = (false, 0);
        loop {
            // SAFETY: the caller vouches for `to` and `len`.
            let reason = match unsafe { sys::receive(self.fd(), to, len, wait) } {
                Ok(0) => "the appliance closed the connection".into(),
                Ok(count) => {
                    stats::received(count);
                    return Ok(Some(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !wait => return Ok(None),
                // This happens only while the session opens. Later, a session that cannot reconnect waits without a
                // limit.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.may_reconnect() => {
                    self.opens_late(&mut silent)?;
                    continue;
                }
                // The worker of a suspended share sends nothing. TCP keepalive detects a dead peer.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.held.is_on() => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !asked => {
                    asked = true;
                    self.probe();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => "the appliance is silent".into(),
                Err(error) => format!("the connection broke: {error}"),
            };
            self.reconnect(so_far, reason)?;
            asked = false;
        }
    }
}

impl Session {
    /// Waits for a new connection. Only the reader calls this. `received` is the number of bytes that it has received.
    ///
    /// # Errors
    /// The reason why there is no connection.
    fn reconnect(&self, received: u64, reason: String) -> Result<(), String> {
        self.check_threads()?;
        let Some(reconnect) = self.reconnect.get().filter(|_| process::check_alive().is_ok()) else {
            return Err(reason);
        };
        // This makes a thread that is sending return. It then sends nothing more.
        sys::shut_down(self.fd());
        let go_on = |socket: &_, theirs| self.go_on_with(socket, theirs);
        reconnect.try_again(&self.peer, &self.epoch, received, reason, go_on)
    }

    /// Handles frames until `done` returns true and the buffer has no whole frame. The next reader waits for events of
    /// the socket, and would not notice a frame in the buffer.
    pub(super) fn read_until(&self, done: impl Fn() -> bool) {
        let mut receiver = self.receiver.lock();
        while (!done() || receiver.has_frame()) && !self.is_lost() {
            if let Err(reason) = self.step(&mut receiver, true) {
                self.lose(0, &reason);
            }
        }
    }

    pub(super) fn read_available(&self) {
        let mut receiver = self.receiver.lock();
        while !self.is_lost() {
            match self.step(&mut receiver, false) {
                Ok(true) => {}
                Ok(false) => return,
                Err(reason) => self.lose(0, &reason),
            }
        }
    }

    pub(super) fn read_in_background(&self) {
        while !self.is_lost() {
            if !self.watch.wait(WINDOW_EVERY) {
                carrier::follow_window(&self.socket);
                continue;
            }
            // A watch that has fired is no longer armed, so there is nothing to disarm.
            if self.lead.try_enter(|| ()) {
                self.lead_while(|| self.read_available());
            }
        }
    }

    /// Handles one frame. Returns false if no byte has arrived and `wait` is not set.
    fn step(&self, receiver: &mut Receiver, wait: bool) -> Result<bool, Broken> {
        let Some(header) = receiver.header(self, wait)? else { return Ok(false) };
        // Only the reader stores this count, and it never decreases.
        self.acknowledged.store(header.ack, Relaxed);
        let len = header.len as usize;
        if header.code == HostBytes::CODE {
            self.land(receiver, &header)?;
        } else if len <= BUFFER {
            receiver.need(self, len)?;
            self.dispatch(&header, receiver.next(len))?;
        } else {
            let mut payload = vec![0; len];
            // SAFETY: the vector has `len` bytes.
            unsafe { receiver.take_to(self, payload.as_mut_ptr(), len)? };
            self.dispatch(&header, &payload)?;
        }
        self.acknowledge_if_due(receiver.received());
        Ok(true)
    }

    /// Receives bytes of a copy into the program's memory.
    fn land(&self, receiver: &mut Receiver, header: &Header) -> Result<(), Broken> {
        let len = (header.len as usize).checked_sub(OFFSET_BYTES).ok_or("bytes arrived without their place")?;
        receiver.need(self, OFFSET_BYTES)?;
        let offset = u64::from_le_bytes(receiver.take());
        let to = match self.pending.lock().get(&header.seq) {
            Some(Pending::Landing(to, _)) => *to,
            _ => return Err("bytes arrived that nobody asked for".into()),
        };
        if offset.checked_add(len as u64).is_none_or(|end| end > to.packed()) {
            return Err("more bytes arrived than were asked for".into());
        }
        for (address, count) in to.runs(offset, len as u64) {
            // SAFETY: the program gave this memory to a copy that is not complete: its command is still pending.
            unsafe { receiver.take_to(self, std::ptr::with_exposed_provenance_mut(address), count)? };
        }
        Ok(())
    }

    fn dispatch(&self, header: &Header, payload: &[u8]) -> Result<(), Broken> {
        let unreadable = |_| format!("the appliance sent a {} that cannot be read", name(header.code));
        match header.code {
            protocol::Reply::CODE => {
                let (reply, tail) = protocol::Reply::decode(payload).map_err(unreadable)?;
                self.deliver(header.seq, reply.code, tail)
            }
            EventDone::CODE => {
                let (done, _) = EventDone::decode(payload).map_err(unreadable)?;
                self.note_code(done.code);
                if self.events_tell() {
                    self.note_late(done.code);
                }
                if let Some(progress) = lock(&self.events).get(&done.event).and_then(std::sync::Weak::upgrade) {
                    progress.done.fetch_max(done.generation, SeqCst);
                }
                Ok(())
            }
            Fenced::CODE => {
                let (fenced, _) = Fenced::decode(payload).map_err(unreadable)?;
                if let Some(slot) = lock(&self.fences).remove(&fenced.token) {
                    slot.finish(Reply { code: 0, tail: Vec::new() });
                }
                Ok(())
            }
            Consumed::CODE => {
                let (consumed, _) = Consumed::decode(payload).map_err(unreadable)?;
                self.open_window(consumed.bytes);
                Ok(())
            }
            NeedBytes::CODE => {
                let (need, _) = NeedBytes::decode(payload).map_err(unreadable)?;
                let from = match self.pending.lock().get(&header.seq) {
                    Some(Pending::Supply(from, _)) => from.clone(),
                    _ => return Err("the appliance asked for bytes of no copy".into()),
                };
                self.supply(header.seq, from, &need)
            }
            Callback::CODE => {
                let (callback, _) = Callback::decode(payload).map_err(unreadable)?;
                self.run_callback(callback.token)
            }
            Text::CODE => {
                let (text, bytes) = Text::decode(payload).map_err(unreadable)?;
                sys::write_all(if text.stderr { libc::STDERR_FILENO } else { libc::STDOUT_FILENO }, bytes);
                Ok(())
            }
            Ending::CODE => {
                let (ending, _) = Ending::decode(payload).map_err(unreadable)?;
                self.lose(ending.code, &ending.reason);
                Ok(())
            }
            Held::CODE => {
                let (held, _) = Held::decode(payload).map_err(unreadable)?;
                if self.held.note(&self.peer, &held.reason) {
                    // The connections of the stripes have ended.
                    self.end_stripes();
                    // The background thread sends the waiting frames, because the reader must not wait for the lock of
                    // the outbox.
                    self.held.release();
                    self.wake.wake();
                }
                Ok(())
            }
            Notice::CODE => {
                let (notice, _) = Notice::decode(payload).map_err(unreadable)?;
                log::error(&format!("appliance {}: {}", self.peer, notice.line));
                Ok(())
            }
            MirrorsTold::CODE => {
                let (told, bytes) = MirrorsTold::decode(payload).map_err(unreadable)?;
                let mut news = lock(&self.news);
                self.news_bytes.fetch_add(payload.len(), SeqCst);
                news.push(News { told, bytes: bytes.to_vec() });
                Ok(())
            }
            Acknowledge::CODE => Ok(()),
            code => Err(format!("the appliance sent a frame of unknown kind {code:#x}")),
        }
    }

    fn deliver(&self, number: u64, code: u32, tail: &[u8]) -> Result<(), Broken> {
        let pending = self.pending.lock().remove(&number);
        self.note_code(code);
        let pending = pending.ok_or("the appliance answered a command twice")?;
        if let Pending::Landing(to, _) = &pending {
            self.landings.note(to);
        }
        match pending {
            Pending::Reply(Waiter::Thread(slot)) | Pending::Landing(_, Waiter::Thread(slot)) => {
                slot.finish(Reply { code, tail: tail.to_vec() });
            }
            Pending::Reply(Waiter::Then(then)) | Pending::Landing(_, Waiter::Then(then)) => {
                self.note_late(code);
                then(code);
            }
            Pending::Reply(Waiter::Nobody) | Pending::Landing(_, Waiter::Nobody) => self.note_late(code),
            Pending::Supply(_, waiter) => {
                self.note_late(code);
                waiter.supplied(code);
            }
        }
        Ok(())
    }

    fn open_window(&self, bytes: u64) {
        let waiters = {
            let mut window = lock(&self.window);
            window.outstanding = window.outstanding.saturating_sub(bytes);
            std::mem::take(&mut window.waiters)
        };
        waiters.iter().for_each(|slot| slot.finish(Reply { code: 0, tail: Vec::new() }));
    }

    /// Returns whether a pending copy will still read or write this host memory.
    pub fn is_in_use(&self, memory: &HostBox) -> bool {
        self.pending.lock().values().any(|pending| match pending {
            Pending::Landing(host, _) | Pending::Supply(Source::Host(host), _) => host.overlaps(memory),
            Pending::Reply(_) | Pending::Supply(Source::Peer(..), _) => false,
        })
    }

    /// Returns whether a pending copy will still write this host memory.
    pub fn is_landing(&self, memory: &HostBox) -> bool {
        self.pending.lock().values().any(|p| matches!(p, Pending::Landing(host, _) if host.overlaps(memory)))
    }
}

fn name(code: u32) -> &'static str {
    message_name(code).unwrap_or("frame")
}
