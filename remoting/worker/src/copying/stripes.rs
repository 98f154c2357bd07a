//! Stripes: additional connections of a session that carry the bytes of large copies. The commands use the session's
//! main connection and name the stripe. The threads of a stripe receive into page-locked memory and send from it. If a
//! stripe ends early, the remaining bytes use the main connection: they are requested like those of a late copy, or
//! sent like those of `CopyToHost`.

use crate::driver::staging::Buffer;
use protocol::PieceHeader;
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A report of the thread that receives on a stripe.
pub(super) enum Came {
    /// The bytes of this command come next, although bytes of other commands were expected first.
    OutOfTurn(u64),
    /// All bytes of a command have arrived.
    Bytes(u64, Buffer),
}

/// The state that the sequencer shares with a stripe's threads.
#[derive(Default)]
pub(super) struct Work {
    /// The commands whose bytes are expected, each with its buffer once there is one.
    pub(super) expected: HashMap<u64, Option<Buffer>>,
    /// The last command whose bytes are expected on this stripe.
    pub(super) last: u64,
    pub(super) to_send: VecDeque<(u64, Arc<Buffer>)>,
    pub(super) closed: bool,
}

pub(super) struct Stripe {
    socket: OwnedFd,
    work: Mutex<Work>,
    changed: Condvar,
}

impl Stripe {
    pub(super) fn new(socket: OwnedFd) -> Arc<Stripe> {
        Arc::new(Stripe { socket, work: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, work: MutexGuard<'a, Work>) -> MutexGuard<'a, Work> {
        self.changed.wait(work).unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, change: impl FnOnce(&mut Work)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        self.tell(|work| work.closed = true);
        // This fails only if the client has closed its end.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Waits for the buffer that receives the bytes of a piece. Returns `None` if no command expects the piece, or if
    /// the stripe ends.
    fn place(&self, piece: PieceHeader, report: &impl Fn(Came)) -> Option<Buffer> {
        let PieceHeader { command, len } = piece;
        let mut work = self.lock();
        let mut asked = false;
        while !work.closed {
            match work.expected.get(&command) {
                Some(buffer) if buffer.is_some() => {
                    let buffer = work.expected.remove(&command).flatten();
                    return buffer.filter(|buffer| buffer.len() as u64 == len);
                }
                // Other pieces were expected first.
                Some(_) if !asked => {
                    asked = true;
                    report(Came::OutOfTurn(command));
                }
                Some(_) => {}
                None if command <= work.last => return None,
                None => {}
            }
            work = self.wait(work);
        }
        None
    }

    pub(super) fn receive(&self, report: &impl Fn(Came)) -> Option<()> {
        loop {
            let mut header = [0; PieceHeader::BYTES];
            fill(&self.socket, &mut header)?;
            let piece = PieceHeader::decode(&header);
            let mut buffer = self.place(piece, report)?;
            fill(&self.socket, buffer.bytes_mut())?;
            report(Came::Bytes(piece.command, buffer));
        }
    }

    pub(super) fn send(&self) -> Option<()> {
        loop {
            let mut work = self.lock();
            while work.to_send.is_empty() && !work.closed {
                work = self.wait(work);
            }
            if work.closed {
                return None;
            }
            let (command, buffer) = work.to_send.pop_front()?;
            drop(work);
            let header = PieceHeader { command, len: buffer.len() as u64 }.encode();
            let mut parts = [IoSlice::new(&header), IoSlice::new(buffer.bytes(0..buffer.len()))];
            let mut parts = &mut parts[..];
            while !parts.is_empty() {
                let none = &mut SendAncillaryBuffer::default();
                let sent = retry_on_intr(|| sendmsg(&self.socket, parts, none, SendFlags::NOSIGNAL)).ok()?;
                IoSlice::advance_slices(&mut parts, sent);
            }
        }
    }
}

fn fill(socket: &OwnedFd, mut bytes: &mut [u8]) -> Option<()> {
    while !bytes.is_empty() {
        let (_, count) =
            retry_on_intr(|| recv(socket, &mut *bytes, RecvFlags::empty())).ok().filter(|got| got.1 > 0)?;
        bytes = &mut bytes[count..];
    }
    Some(())
}

/// A `CopyToDeviceStriped` that the driver does not have yet.
pub(super) struct Arriving {
    pub(super) stripe: u64,
    pub(super) context: u64,
    pub(super) len: usize,
    pub(super) lent: bool,
    /// Whether the bytes of this command are the next ones on the stripe, although others were expected first.
    pub(super) is_next: bool,
    pub(super) bytes: Option<Buffer>,
}

#[derive(Default)]
pub struct Stripes {
    pub(super) open: HashMap<u64, Arc<Stripe>>,
    pub(super) newest: u64,
    pub(super) arriving: BTreeMap<u64, Arriving>,
    /// The `CopyToHostStriped` commands whose bytes the client has not received, each with its stripe and its buffer.
    pub(super) leaving: BTreeMap<u64, (u64, Arc<Buffer>)>,
}

impl Stripes {
    /// Ends all stripes; the session continues.
    pub fn close(&mut self) {
        self.open.values().for_each(|stripe| stripe.close());
    }

    /// Whether no bytes are being sent to the client on a stripe.
    pub fn is_idle(&self) -> bool {
        self.leaving.is_empty()
    }
}

impl Drop for Stripes {
    fn drop(&mut self) {
        self.close();
    }
}
