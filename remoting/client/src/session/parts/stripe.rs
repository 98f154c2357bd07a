//! A stripe: an additional connection that carries pieces of large copies in both directions.

use super::wait::lock;
use crate::locks::{Ordered, Rank};
use crate::program::{stats, sys};
use protocol::PieceHeader;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::with_exposed_provenance;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The time within which a stripe's thread must stop using the memory of an ended command. Otherwise the stripe is
/// closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a connection for the stripe with this number. Returns `None` if that is not possible.
pub type Connect = dyn Fn(u64) -> Option<OwnedFd> + Send + Sync;

/// The work of a stripe's two threads.
#[derive(Default)]
pub struct Work {
    /// The pieces to send: number of the command, address and length.
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

    /// Waits until no thread of the stripe uses memory of the command. Closes the stripe if that takes too long.
    pub fn let_go(&self, command: u64) {
        let is_busy = |work: &mut Work| [work.sends, work.receives].contains(&Some(command));
        let work = lock(&self.work);
        let (mut work, _) =
            self.changed.wait_timeout_while(work, PATIENCE, is_busy).unwrap_or_else(PoisonError::into_inner);
        let waits = work.to_send.iter().any(|(waiting, ..)| *waiting == command);
        if is_busy(&mut work) || waits {
            // The worker cannot tell which bytes follow an interrupted piece, so the stripe must end.
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

    /// Receives exactly `len` bytes. Returns `None` if the connection ends first.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    pub unsafe fn fill(&self, to: *mut u8, len: usize) -> Option<()> {
        let mut filled = 0;
        while filled < len {
            // SAFETY: the range lies inside the memory that the caller vouches for.
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
    /// The number of stripes, and the function that connects one.
    pub connect: OnceLock<(usize, Box<Connect>)>,
    /// The open stripes. `None` before the first large copy, and after a reconnect until the next large copy.
    pub open: Ordered<Option<Vec<Arc<Stripe>>>>,
}

impl Default for Stripes {
    fn default() -> Self {
        Stripes { connect: OnceLock::new(), open: Ordered::new(Rank::Stripes, None) }
    }
}
