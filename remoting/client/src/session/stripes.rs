//! Connections next to the session's own that carry bytes of large copies, in both directions at the same time. The
//! commands stay on the session's connection and name their stripe, so all orders are as without stripes. If a stripe
//! ends, the rest of its bytes goes by the session's own connection.

use super::copies::Source;
use super::{DeviceBox, HostBox, Known, Pending, Reply, Session, Slot, Waiter, lock, mint};
use crate::Code;
use crate::program::{log, process, stats, sys};
use protocol::{BULK_CHUNK, CopyToDeviceStriped, CopyToHostStriped, Landed, Message, PieceHeader, since};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// Smaller copies finish before stripes help.
const LEAST: u64 = 8 << 20;
const PIECE: u64 = BULK_CHUNK as u64;
/// The most pieces of a copy to the host that are assigned to a stripe in advance.
const AHEAD: usize = 4;
/// A stripe's thread stops touching memory of an ended command within this time, or the stripe is closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a new connection with this number, if there is a way.
type Connect = dyn Fn(u64) -> Option<OwnedFd> + Send + Sync;

const STRIPES: &str = "REMOTEGPU_STRIPES";
const MOST: usize = 8;

/// Returns how many stripes a session opens, as the environment says; none if it says nothing.
pub fn wanted_stripes() -> usize {
    let Ok(text) = std::env::var(STRIPES) else { return 0 };
    text.parse().ok().filter(|count| *count <= MOST).unwrap_or_else(|| {
        log::error(&format!("{STRIPES}={text} is no number from 0 to {MOST}; set it to one; no stripes are used"));
        0
    })
}

/// The state of a stripe's work.
#[derive(Default)]
struct Work {
    /// Command, address and length.
    to_send: VecDeque<(u64, usize, usize)>,
    sends: Option<u64>,
    receives: Option<u64>,
    closed: bool,
}

struct Stripe {
    number: u64,
    socket: OwnedFd,
    work: Mutex<Work>,
    changed: Condvar,
}

impl Stripe {
    fn tell(&self, change: impl FnOnce(&mut Work)) {
        change(&mut lock(&self.work));
        self.changed.notify_all();
    }

    fn close(&self) {
        self.tell(|work| work.closed = true);
        sys::shut_down(self.socket.as_raw_fd());
    }

    /// Returns when no thread of the stripe touches memory of the command any more.
    fn let_go(&self, command: u64) {
        let is_busy = |work: &mut Work| [work.sends, work.receives].contains(&Some(command));
        let work = lock(&self.work);
        let (mut work, _) =
            self.changed.wait_timeout_while(work, PATIENCE, is_busy).unwrap_or_else(PoisonError::into_inner);
        let waits = work.to_send.iter().any(|(waiting, ..)| *waiting == command);
        if is_busy(&mut work) || waits {
            // The worker could not know any more what follows.
            work.to_send.clear();
            drop(work);
            self.close();
            drop(self.changed.wait_while(lock(&self.work), is_busy));
        }
    }

    fn next_to_send(&self) -> Option<(u64, usize, usize)> {
        let waits = |work: &mut Work| work.to_send.is_empty() && !work.closed;
        let mut work: MutexGuard<'_, Work> =
            self.changed.wait_while(lock(&self.work), waits).unwrap_or_else(PoisonError::into_inner);
        if work.closed {
            return None;
        }
        let next = work.to_send.pop_front();
        work.sends = next.map(|(command, ..)| command);
        next
    }

    fn send(&self) -> Option<()> {
        loop {
            let (command, address, len) = self.next_to_send()?;
            let header = PieceHeader { command, len: len as u64 }.encode();
            // SAFETY: the call whose memory this is waits in `let_go` while `sends` names the command.
            let bytes = unsafe { std::slice::from_raw_parts(with_exposed_provenance::<u8>(address), len) };
            let mut sent = 0;
            while sent < header.len() + len {
                let (head, body) = (header.get(sent..).unwrap_or_default(), sent.saturating_sub(header.len()));
                let parts = [head, &bytes[body..]];
                sent += sys::send(self.socket.as_raw_fd(), parts.into_iter()).ok()?;
            }
            stats::sent(sent);
            stats::striped(sent);
            self.tell(|work| work.sends = None);
        }
    }

    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    unsafe fn fill(&self, to: *mut u8, len: usize) -> Option<()> {
        let mut filled = 0;
        while filled < len {
            // SAFETY: inside of what the caller vouches for.
            let count = unsafe { sys::receive(self.socket.as_raw_fd(), to.add(filled), len - filled, true) }.ok()?;
            if count == 0 {
                return None;
            }
            stats::received(count);
            stats::striped(count);
            filled += count;
        }
        Some(())
    }

    fn receive(&self, session: &Session) -> Option<()> {
        loop {
            let mut header = [0; PieceHeader::BYTES];
            // SAFETY: the array's own length.
            unsafe { self.fill(header.as_mut_ptr(), header.len())? };
            let PieceHeader { command, len } = PieceHeader::decode(&header);
            // From here on `let_go` waits. It is called when the command is not pending any more.
            self.tell(|work| work.receives = Some(command));
            let to = match lock(&session.pending).get(&command) {
                Some(Pending::Landing(to, _)) if to.packed() == len => *to,
                _ => return None,
            };
            for (address, count) in to.runs(0, len) {
                // SAFETY: the call whose memory this is waits in `let_go` while `receives` names the command.
                unsafe { self.fill(with_exposed_provenance_mut(address), count)? };
            }
            self.tell(|work| work.receives = None);
            let landed = Landed { command };
            session
                .append(Landed::CODE, 0, &[], None, true, |w| {
                    w.put(&landed);
                })
                .ok()?;
        }
    }

    /// # Errors
    /// If the system has no more threads.
    fn start(self: &Arc<Self>, session: &Arc<Session>) -> std::io::Result<()> {
        let (stripe, session) = (Arc::clone(self), Arc::clone(session));
        sys::spawn("remotegpu-stripe", move || {
            stripe.receive(&session);
            stripe.close();
            stripe.tell(|work| work.receives = None);
        })?;
        let stripe = Arc::clone(self);
        sys::spawn("remotegpu-stripe", move || {
            stripe.send();
            stripe.close();
            stripe.tell(|work| work.sends = None);
        })
    }
}

#[derive(Default)]
pub struct Stripes {
    /// The number of stripes, and the way to connect one.
    connect: OnceLock<(usize, Box<Connect>)>,
    /// None before the first large copy, and the first after a reconnect.
    open: Mutex<Option<Vec<Arc<Stripe>>>>,
}

impl Session {
    /// Lets large copies open `count` more connections.
    pub fn stripe_by(&self, count: usize, connect: impl Fn(u64) -> Option<OwnedFd> + Send + Sync + 'static) {
        let _ = self.stripes.connect.set((count, Box::new(connect)));
    }

    /// Ends the stripes: none of them may work where the session continues. The next large copy opens others. For the
    /// reader, which may not wait.
    pub(super) fn end_stripes(&self) {
        let mut open = match self.stripes.open.try_lock() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is opening them.
            Err(TryLockError::WouldBlock) => return,
        };
        open.take().into_iter().flatten().for_each(|stripe| stripe.close());
    }

    /// Returns the stripes for a copy, if it is worth them.
    fn stripes_for(self: &Arc<Self>, host: &HostBox, device: &DeviceBox) -> Vec<Arc<Stripe>> {
        let (start, end) = host.span();
        let lies_together = (end - start) as u64 == host.packed();
        let is_worth_it = host.packed() >= LEAST && lies_together && device.is_linear();
        if !is_worth_it || self.shares(host) || self.held.is_on() {
            return Vec::new();
        }
        let mut open = lock(&self.stripes.open);
        let all = open.get_or_insert_with(|| self.open_stripes());
        all.retain(|stripe| !lock(&stripe.work).closed);
        all.clone()
    }

    fn open_stripes(self: &Arc<Self>) -> Vec<Arc<Stripe>> {
        let Some((count, connect)) = self.stripes.connect.get() else { return Vec::new() };
        let count = if self.wire < since(CopyToDeviceStriped::CODE) { 0 } else { *count };
        let one = |_| {
            let number = mint();
            let socket = connect(number)?;
            process::close_in_children(socket.as_raw_fd());
            let stripe = Arc::new(Stripe { number, socket, work: Mutex::default(), changed: Condvar::new() });
            let started = stripe.start(self);
            if started.is_err() {
                stripe.close();
            }
            started.ok().map(|()| stripe)
        };
        (0..count).map_while(one).collect()
    }

    /// Copies over the stripes, and returns when the program may change the bytes; false if they have to go another
    /// way.
    ///
    /// # Errors
    /// The session's sticky error.
    pub(super) fn send_by_stripes(
        self: &Arc<Self>,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
    ) -> Result<bool, Code> {
        let (stripes, total) = (self.stripes_for(from, to), from.packed());
        if stripes.is_empty() {
            return Ok(false);
        }
        self.start_jobs()?;
        let mut under_way = Vec::new();
        let mut outcome = Ok(());
        for (offset, stripe) in (0..total).step_by(BULK_CHUNK).zip(stripes.iter().cycle()) {
            let len = (total - offset).min(PIECE);
            let (piece, slot) = (HostBox::linear(from.base + offset as usize, len), Slot::new());
            let supply = Pending::Supply(Source::Host(piece), Waiter::Thread(Arc::clone(&slot)));
            let DeviceBox { context, address, .. } = to.part(offset, len);
            let message = CopyToDeviceStriped { context, address, len, stripe: stripe.number };
            let sent = self.reserve_window(len).and_then(|()| {
                self.append(CopyToDeviceStriped::CODE, stream_id, &[], Some(supply), true, |w| {
                    w.put(&message);
                })
            });
            match sent {
                Ok(command) => {
                    stripe.tell(|work| work.to_send.push_back((command, piece.base, len as usize)));
                    under_way.push((stripe, command, slot));
                }
                Err(code) => {
                    outcome = Err(code);
                    break;
                }
            }
        }
        for (stripe, command, slot) in under_way {
            let done = self.wait(&slot).map(drop);
            stripe.let_go(command);
            outcome = outcome.and(done);
        }
        self.note_work();
        outcome.map(|()| true)
    }

    /// Copies over the stripes and waits until the bytes have landed. `None`: they have to go another way.
    pub(super) fn receive_by_stripes(
        self: &Arc<Self>,
        stream_id: u64,
        to: &HostBox,
        from: &DeviceBox,
    ) -> Option<Result<(), Code>> {
        let (stripes, total) = (self.stripes_for(to, from), to.packed());
        if stripes.is_empty() {
            return None;
        }
        let mut pieces = (0..total).step_by(BULK_CHUNK).zip(stripes.iter().cycle());
        let (mut under_way, mut last, mut outcome) = (VecDeque::new(), 0, Ok(()));
        loop {
            while outcome.is_ok()
                && under_way.len() < AHEAD * stripes.len()
                && let Some((offset, stripe)) = pieces.next()
            {
                let len = (total - offset).min(PIECE);
                let (piece, slot) = (HostBox::linear(to.base + offset as usize, len), Slot::new());
                let DeviceBox { context, address, .. } = from.part(offset, len);
                let message = CopyToHostStriped { context, address, len, stripe: stripe.number };
                let landing = Pending::Landing(piece, Waiter::Thread(Arc::clone(&slot)));
                let asked = self.append(CopyToHostStriped::CODE, stream_id, &[], Some(landing), true, |w| {
                    w.put(&message);
                });
                match asked {
                    Ok(command) => {
                        last = command;
                        under_way.push_back((stripe, command, slot));
                    }
                    Err(code) => outcome = Err(code),
                }
            }
            let Some((stripe, command, slot)) = under_way.pop_front() else { break };
            let done = self.wait(&slot).and_then(Reply::success).map(drop);
            stripe.let_go(command);
            outcome = outcome.and(done);
        }
        self.note_work();
        Some(outcome.map(|()| self.note_complete(stream_id, Known::Told, last)))
    }
}
