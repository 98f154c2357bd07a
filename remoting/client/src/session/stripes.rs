//! Stripes: additional connections that carry the bytes of large copies in both directions at the same time. The
//! commands stay on the session's connection and name their stripe, so stripes do not change the order. If a stripe
//! ends, the rest of its bytes is sent on the session's connection.

use super::parts::stripe::Stripe;
use super::pending::{Pending, Source, Waiter};
use super::sessions::mint;
use super::{DeviceBox, HostBox, Known, Reply, Session, Slot, lock};
use crate::Code;
use crate::program::{log, process, sys};
use protocol::{BULK_CHUNK, CopyToDeviceStriped, CopyToHostStriped, Landed, Message, PieceHeader, since};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Condvar, Mutex};

/// The minimum size in bytes of a copy that uses stripes. Smaller copies would end before stripes help.
const LEAST: u64 = 8 << 20;
const PIECE: u64 = BULK_CHUNK as u64;
/// The maximum number of pieces of a copy to the host that are assigned to a stripe in advance.
const AHEAD: usize = 4;

const STRIPES: &str = "REMOTEGPU_STRIPES";
const MOST: usize = 8;

/// Returns the number of stripes that the environment sets, or 0.
pub fn wanted_stripes() -> usize {
    let Ok(text) = std::env::var(STRIPES) else { return 0 };
    text.parse().ok().filter(|count| *count <= MOST).unwrap_or_else(|| {
        log::error(&format!("{STRIPES}={text} is no number from 0 to {MOST}; set it to one; no stripes are used"));
        0
    })
}

impl Stripe {
    fn receive(&self, session: &Session) -> Option<()> {
        loop {
            let mut header = [0; PieceHeader::BYTES];
            // SAFETY: the array's own length.
            unsafe { self.fill(header.as_mut_ptr(), header.len())? };
            let PieceHeader { command, len } = PieceHeader::decode(&header);
            // From here on `let_go` waits for this piece. It is called when the command is no longer pending.
            self.tell(|work| work.receives = Some(command));
            let to = match session.pending.lock().get(&command) {
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

    /// Starts the two threads of the stripe.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    fn start(self: &Arc<Self>, session: &Arc<Session>) -> std::io::Result<()> {
        let (stripe, session) = (Arc::clone(self), Arc::clone(session));
        let own = Arc::clone(&session);
        sys::spawn("remotegpu-stripe", move || {
            session.guarded("remotegpu-stripe", || {
                let _ = stripe.receive(&session);
            });
            stripe.close();
            stripe.tell(|work| work.receives = None);
        })?;
        let stripe = Arc::clone(self);
        sys::spawn("remotegpu-stripe", move || {
            own.guarded("remotegpu-stripe", || {
                let _ = stripe.send();
            });
            stripe.close();
            stripe.tell(|work| work.sends = None);
        })
    }
}

impl Session {
    /// Lets large copies open `count` additional connections with `connect`.
    pub fn stripe_by(&self, count: usize, connect: impl Fn(u64) -> Option<OwnedFd> + Send + Sync + 'static) {
        let _ = self.stripes.connect.set((count, Box::new(connect)));
    }

    /// Closes the stripes after a reconnect, because their connections may lead to another worker. The next large copy
    /// opens new ones. Called by the reader, so it never blocks.
    pub(super) fn end_stripes(&self) {
        // If the lock is taken, another thread is opening stripes.
        let Some(mut open) = self.stripes.open.try_lock() else { return };
        open.take().into_iter().flatten().for_each(|stripe| stripe.close());
    }

    /// Returns the open stripes. Returns none if the copy is too small, its bytes are not contiguous, the worker shares
    /// the memory, or the share is suspended.
    fn stripes_for(self: &Arc<Self>, host: &HostBox, device: &DeviceBox) -> Vec<Arc<Stripe>> {
        let (start, end) = host.span();
        let lies_together = (end - start) as u64 == host.packed();
        let is_worth_it = host.packed() >= LEAST && lies_together && device.is_linear();
        if !is_worth_it || self.shares(host) || self.held.is_on() {
            return Vec::new();
        }
        let mut open = self.stripes.open.lock();
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

    /// Sends a copy over the stripes. Returns when the program may change the bytes. Returns false, and sends nothing,
    /// if stripes cannot be used.
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

    /// Receives a copy over the stripes, and waits until the bytes have arrived. Returns `None` if stripes cannot be
    /// used.
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
