//! Copies of pageable memory to and from a worker on this machine. They go in pieces through the ring, page-locked
//! memory that the worker shares.

use super::parts::pieces::{PIECE, PIECES, Pieces, Ring};
use super::parts::sharing::LEAST;
use super::pending::Waiter;
use super::{DeviceBox, HostBox, Known, Session, Slot};
use crate::Code;
use crate::locks::Guard;
use crate::program::sys;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
/// The maximum wait for a piece of a copy that must not wait for its stream. Copying one piece takes less time.
const PATIENCE: Duration = Duration::from_millis(2);

impl Session {
    /// Locks the ring, and creates it if necessary. Returns `None` if there is no ring or another thread uses it.
    fn ring(&self, context: u64) -> Option<Guard<'_, Ring>> {
        let mut ring = self.ring.try_lock()?;
        *ring = match std::mem::take(&mut *ring) {
            Ring::Unused => self.new_ring(context).map_or(Ring::Refused(None), Ring::There),
            Ring::There(pieces) if !self.shares(&pieces.all()) => Ring::Refused(Some(pieces)),
            other => other,
        };
        matches!(*ring, Ring::There(_)).then_some(ring)
    }

    /// Takes the piece that was used the longest time ago, and waits for its copy to complete. Returns `None` if
    /// `may_wait` is not set and that takes longer than `PATIENCE`.
    fn take_piece(&self, pieces: &mut Pieces, may_wait: bool) -> Result<Option<usize>, Code> {
        let Some((place, last)) = pieces.used.pop_front() else { return Ok(None) };
        if let Some(slot) = last.filter(|slot| !slot.is_finished()) {
            if !may_wait && !self.is_soon(&slot, PATIENCE) {
                pieces.used.push_front((place, Some(slot)));
                return Ok(None);
            }
            let waited = self.wait(&slot);
            if let Err(code) = waited {
                pieces.used.push_front((place, Some(slot)));
                return Err(code);
            }
        }
        Ok(Some(place))
    }

    fn new_ring(&self, context: u64) -> Option<Pieces> {
        let size = PIECE * PIECES;
        let address = self.arena().take_pinned(size as u64, PAGE)?;
        let base = address as usize;
        // SAFETY: this range of the arena was just taken for the ring.
        let backed = unsafe { self.back_shared(context, base, size) };
        if self.shares(&HostBox::linear(base, size as u64)) {
            let used = (0..PIECES).map(|at| (base + at * PIECE, None)).collect();
            return Some(Pieces { context, base, used });
        }
        if backed {
            // SAFETY: the range was just backed with memory, and no other code knows its address.
            unsafe { sys::unback(base, size) };
        }
        self.arena().put_back_pinned(address, size as u64);
        None
    }

    /// Copies packed bytes to the device through the ring. Returns how many were copied: the program may change those.
    /// With `may_wait` it copies all of them, and may wait for the stream; otherwise it stops when no piece is free
    /// soon.
    ///
    /// # Errors
    /// The session's sticky error.
    pub(super) fn send_by_ring(
        self: &Arc<Self>,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
        may_wait: bool,
    ) -> Result<u64, Code> {
        let total = from.packed();
        if total < LEAST || !to.is_linear() {
            return Ok(0);
        }
        let Some(mut ring) = self.ring(to.context) else { return Ok(0) };
        let Ring::There(pieces) = &mut *ring else { return Ok(0) };
        let mut offset = 0;
        while offset < total {
            let Some(place) = self.take_piece(pieces, may_wait)? else { break };
            let (len, slot) = ((total - offset).min(PIECE as u64), Slot::new());
            from.pack(offset, len, place);
            let piece = HostBox::linear(place, len);
            let sent = self.supply_late(stream_id, &to.part(offset, len), &piece, Waiter::Thread(Arc::clone(&slot)));
            pieces.used.push_back((place, sent.is_ok().then_some(slot)));
            sent?;
            offset += len;
        }
        Ok(offset)
    }

    /// Copies to the host through the ring, and waits until the bytes have arrived. Returns `None` if the ring cannot
    /// be used and the bytes must go over the connection. Without `may_wait` it is not used if copies of other streams
    /// use pieces for longer than `PATIENCE`.
    pub(super) fn receive_by_ring(
        &self,
        stream_id: u64,
        to: &HostBox,
        from: &DeviceBox,
        may_wait: bool,
    ) -> Option<Result<(), Code>> {
        if to.packed() < LEAST || !from.is_linear() || self.shares(to) {
            return None;
        }
        let mut ring = self.ring(from.context)?;
        match &mut *ring {
            Ring::There(pieces) if !may_wait && !self.is_free_soon(pieces) => None,
            Ring::There(pieces) => Some(self.receive_pieces(pieces, stream_id, to, from)),
            Ring::Unused | Ring::Refused(_) => None,
        }
    }

    fn is_free_soon(&self, pieces: &Pieces) -> bool {
        let mut used = pieces.used.iter().filter_map(|(_, slot)| slot.as_ref());
        used.all(|slot| self.is_soon(slot, PATIENCE))
    }

    fn receive_pieces(&self, pieces: &mut Pieces, stream_id: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        let total = to.packed();
        let (mut asked, mut landed, mut last, mut failed) = (0, 0, 0, Ok(()));
        let mut under_way = VecDeque::new();
        while landed < total && failed.is_ok() {
            while asked < total && under_way.len() < PIECES {
                let Some(place) = self.take_piece(pieces, true)? else { break };
                let (len, slot) = ((total - asked).min(PIECE as u64), Slot::new());
                let (piece, there) = (HostBox::linear(place, len), from.part(asked, len));
                let waiter = Waiter::Thread(Arc::clone(&slot));
                match self.ask_for_bytes(stream_id, &piece, &there, 0, waiter) {
                    Ok(number) => last = number,
                    Err(code) => {
                        pieces.used.push_back((place, None));
                        failed = Err(code);
                        break;
                    }
                }
                under_way.push_back((place, len, slot));
                asked += len;
            }
            if failed.is_err() {
                break;
            }
            let Some((place, len, slot)) = under_way.pop_front() else { break };
            failed = self.wait(&slot).and_then(super::Reply::success).map(drop);
            if failed.is_ok() {
                to.unpack(landed, len, place);
            }
            landed += len;
            pieces.used.push_back((place, Some(slot)));
        }
        pieces.used.extend(under_way.into_iter().map(|(place, _, slot)| (place, Some(slot))));
        failed?;
        self.note_complete(stream_id, Known::Told, last);
        Ok(())
    }

    /// Destroys the ring of a context that is about to be destroyed, and ends its sharing with the worker.
    pub fn end_ring(&self, context: u64) {
        let mut ring = self.ring.lock();
        let (Ring::There(pieces) | Ring::Refused(Some(pieces))) = &*ring else { return };
        if pieces.context != context {
            return;
        }
        for slot in pieces.used.iter().filter_map(|(_, slot)| slot.as_ref()) {
            // A lost session does not use the memory any more, so the error is ignored.
            let _ = self.wait(slot);
        }
        let (base, size) = (pieces.base, PIECE * PIECES);
        self.end_shared(base);
        // SAFETY: `new_ring` backed this range with memory, and the copies that used it are complete.
        unsafe { sys::unback(base, size) };
        self.arena().put_back_pinned(base as u64, size as u64);
        *ring = Ring::Unused;
    }
}
