//! The incoming side of a session. Only the thread that has the lead ([`super::wait::Lead`]) runs any of this.

use super::copies::Source;
use super::{HostBox, News, Pending, Reply, Session, Waiter, lock};
use crate::program::{log, stats, sys};
use carrier::{Spin, TO_WAKE};
use protocol::{
    Acknowledge, Callback, Consumed, Ending, EventDone, Fenced, HEADER_BYTES, Header, Held, HostBytes, Message,
    MirrorsTold, NeedBytes, Notice, Text, message_name,
};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

const BUFFER: usize = 256 << 10;
/// Runs longer than this are received where they belong, shorter ones through the buffer.
const DIRECT: usize = 16 << 10;
/// Bytes of the field that stands before the bytes of `HostBytes`.
const OFFSET_BYTES: usize = 8;

/// After this long without a byte the background thread checks whether the worker reads.
const WINDOW_EVERY: Duration = Duration::from_secs(2);

/// How long an answer is waited for without sleep: with the GPU's work and its mirrors it takes longer than a command.
const AWAKE: Duration = TO_WAKE.saturating_mul(2);

/// The reason why the session cannot go on.
type Broken = String;

pub struct Receiver {
    /// Bytes of the session so far.
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

/// Receives at most `len` bytes, at least one; `None` if none are there and `wait` is not set. A connection that breaks
/// is replaced by the next one: a caller in the middle of a frame does not notice. A connection on which not even a
/// probe is answered is replaced, too: its carrier may have lost count of its bytes.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
unsafe fn receive(
    session: &Session,
    so_far: u64,
    to: *mut u8,
    len: usize,
    wait: bool,
) -> Result<Option<usize>, Broken> {
    let (mut asked, mut silent) = (false, 0);
    loop {
        // SAFETY: as the caller vouches.
        let reason = match unsafe { sys::receive(session.fd(), to, len, wait) } {
            Ok(0) => "the appliance closed the connection".into(),
            Ok(count) => {
                stats::received(count);
                return Ok(Some(count));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !wait => return Ok(None),
            // Only while it opens: a session that cannot reconnect then waits without a limit.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !session.may_reconnect() => {
                session.opens_late(&mut silent)?;
                continue;
            }
            // A suspended share sends nothing. The kernel's keepalive finds out whether the peer is alive.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && session.held.is_on() => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !asked => {
                asked = true;
                session.probe();
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => "the appliance is silent".into(),
            Err(error) => format!("the connection broke: {error}"),
        };
        session.reconnect(so_far, reason)?;
        asked = false;
    }
}

impl Receiver {
    fn available(&self) -> usize {
        self.end - self.start
    }

    /// Whether a whole frame is in the buffer. No event on the socket reports that.
    fn has_frame(&self) -> bool {
        let Some(header) = self.buffer[self.start..self.end].first_chunk() else { return false };
        // An invalid header is an error, which the next look reports.
        Header::decode(header).map_or(true, |header| self.available() >= HEADER_BYTES + header.len as usize)
    }

    /// Receives available bytes, at least one; false if none are there and `wait` is not set.
    fn fill(&mut self, session: &Session, wait: bool) -> Result<bool, Broken> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == BUFFER {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        // SAFETY: `room` is ours.
        let count = unsafe { receive(session, self.received, room.as_mut_ptr(), room.len(), wait)? };
        self.end += count.unwrap_or(0);
        self.received += count.unwrap_or(0) as u64;
        Ok(count.is_some())
    }

    /// Makes sure that `len` bytes (at most the buffer) are there.
    fn need(&mut self, session: &Session, len: usize) -> Result<(), Broken> {
        if self.start + len > BUFFER {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.available() < len {
            self.fill(session, true)?;
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        out
    }

    /// Moves the next `len` bytes to `to`.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn take_to(&mut self, session: &Session, mut to: *mut u8, mut len: usize) -> Result<(), Broken> {
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
                // SAFETY: as the caller vouches.
                let count = unsafe { receive(session, self.received, to, len, true)? };
                self.received += count.unwrap_or(0) as u64;
                count.unwrap_or(0)
            };
            // SAFETY: still inside the memory that the caller vouches for, or just behind it.
            to = unsafe { to.add(count) };
            len -= count;
        }
        Ok(())
    }

    /// Waits for a frame, at first without sleep.
    fn wait_for_frame(&mut self, session: &Session) -> Result<(), Broken> {
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

    /// Returns the next frame's header; `None` if nothing has arrived and `wait` is not set. A frame that has begun is
    /// waited for.
    fn header(&mut self, session: &Session, wait: bool) -> Result<Option<Header>, Broken> {
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

impl Session {
    /// Reads until `done`, and takes in what came with that: the next reader is notified of bytes that arrive, not of
    /// bytes that are in the buffer.
    pub(super) fn read_until(&self, done: impl Fn() -> bool) {
        let mut receiver = lock(&self.receiver);
        while (!done() || receiver.has_frame()) && !self.is_lost() {
            if let Err(reason) = self.step(&mut receiver, true) {
                self.lose(0, &reason);
            }
        }
    }

    pub(super) fn read_available(&self) {
        let mut receiver = lock(&self.receiver);
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
            // A watch that fired is not armed any more.
            if self.lead.try_enter(|| ()) {
                self.read_available();
                self.lead.leave(|| self.watch.arm());
            }
        }
    }

    /// Takes in one frame.
    fn step(&self, receiver: &mut Receiver, wait: bool) -> Result<bool, Broken> {
        let Some(header) = receiver.header(self, wait)? else { return Ok(false) };
        // Only the reader stores this count, and it never decreases.
        self.acknowledged.store(header.ack, Relaxed);
        let len = header.len as usize;
        if header.code == HostBytes::CODE {
            self.land(receiver, &header)?;
        } else if len <= BUFFER {
            receiver.need(self, len)?;
            let payload = receiver.start..receiver.start + len;
            receiver.start += len;
            self.dispatch(&header, &receiver.buffer[payload])?;
        } else {
            let mut payload = vec![0; len];
            // SAFETY: the vector has `len` bytes.
            unsafe { receiver.take_to(self, payload.as_mut_ptr(), len)? };
            self.dispatch(&header, &payload)?;
        }
        self.acknowledge_if_due(receiver.received);
        Ok(true)
    }

    /// Receives bytes of a copy where the program wants them.
    fn land(&self, receiver: &mut Receiver, header: &Header) -> Result<(), Broken> {
        let len = (header.len as usize).checked_sub(OFFSET_BYTES).ok_or("bytes arrived without their place")?;
        receiver.need(self, OFFSET_BYTES)?;
        let offset = u64::from_le_bytes(receiver.take());
        let to = match lock(&self.pending).get(&header.seq) {
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
                let from = match lock(&self.pending).get(&header.seq) {
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
                self.hold(&held.reason);
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
        let pending = lock(&self.pending).remove(&number);
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

    /// Whether bytes are still to land in, or to be read from, this memory.
    pub fn is_in_use(&self, memory: &HostBox) -> bool {
        lock(&self.pending).values().any(|pending| match pending {
            Pending::Landing(host, _) | Pending::Supply(Source::Host(host), _) => host.overlaps(memory),
            Pending::Reply(_) | Pending::Supply(Source::Peer(..), _) => false,
        })
    }

    /// Whether bytes are still to land in this memory.
    pub fn is_landing(&self, memory: &HostBox) -> bool {
        lock(&self.pending).values().any(|p| matches!(p, Pending::Landing(host, _) if host.overlaps(memory)))
    }
}

fn name(code: u32) -> &'static str {
    message_name(code).unwrap_or("frame")
}
