//! A stripe: a connection that carries pieces of large copies, in both directions.

use super::wait::lock;
use crate::locks::{Ordered, Rank};
use crate::program::{stats, sys};
use protocol::PieceHeader;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::with_exposed_provenance;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A stripe's thread stops touching memory of an ended command within this time, or the stripe is closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a new connection with this number, if there is a way.
pub type Connect = dyn Fn(u64) -> Option<OwnedFd> + Send + Sync;

/// The state of a stripe's work.
#[derive(Default)]
pub struct Work {
    /// Command, address and length.
    pub to_send: VecDeque<(u64, usize, usize)>,
    pub sends: Option<u64>,
    pub receives: Option<u64>,
    pub closed: bool,
}

pub struct Stripe {
    pub number: u64,
    pub socket: OwnedFd,
    pub work: Mutex<Work>,
    pub changed: Condvar,
}

impl Stripe {
    pub fn tell(&self, change: impl FnOnce(&mut Work)) {
        change(&mut lock(&self.work));
        self.changed.notify_all();
    }

    pub fn close(&self) {
        self.tell(|work| work.closed = true);
        sys::shut_down(self.socket.as_raw_fd());
    }

    /// Returns when no thread of the stripe touches memory of the command any more.
    pub fn let_go(&self, command: u64) {
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

    pub fn send(&self) -> Option<()> {
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
    pub unsafe fn fill(&self, to: *mut u8, len: usize) -> Option<()> {
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
}

pub struct Stripes {
    /// The number of stripes, and the way to connect one.
    pub connect: OnceLock<(usize, Box<Connect>)>,
    /// None before the first large copy, and the first after a reconnect.
    pub open: Ordered<Option<Vec<Arc<Stripe>>>>,
}

impl Default for Stripes {
    fn default() -> Self {
        Stripes { connect: OnceLock::new(), open: Ordered::new(Rank::Stripes, None) }
    }
}
