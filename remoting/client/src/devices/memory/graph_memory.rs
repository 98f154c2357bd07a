//! Memory of graphs. Creating a node reserves addresses. When an executable needs the memory, it is mapped there and
//! charged to the share. Small pieces share slabs, and a slab stays mapped while any of its pieces is backed.

use super::allocate::SMALL_SLAB;
use super::heap::{PIECE_ALIGN, Piece, round_up};
use super::state::{DeviceMemory, Reserved, State};
use super::synchronous;
use crate::Code;
use crate::devices::context::Live;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use protocol::{SlabMap, SlabUnmap};
use std::sync::Arc;

impl Reserved {
    pub fn find(&self, address: u64) -> Option<&Piece> {
        self.heap.find(address)
    }

    fn is_mapped(&self, slab: (u64, u64)) -> bool {
        self.backed.values().any(|other| *other == slab)
    }
}

impl DeviceMemory {
    /// Reserves `size` bytes of addresses without memory, and returns the first one.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if `size` is 0, `CUDA_ERROR_OUT_OF_MEMORY` if there are no free addresses.
    pub fn reserve(&self, live: &Arc<Live>, size: u64) -> Result<u64, Code> {
        if size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let state = &mut *self.state.lock();
        state.contexts.entry(live.id).or_insert_with(|| Arc::clone(live));
        if let Some(address) = state.reserved.heap.place(size, live.id, 0) {
            return Ok(address);
        }
        let arena = live.session.arena();
        let rounded = round_up(size.max(SMALL_SLAB), PIECE_ALIGN).and_then(|size| round_up(size, arena.granularity()));
        let slab = rounded.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = arena.take(slab, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        state.reserved.heap.add_slab(start, slab);
        state.reserved.heap.place(size, live.id, 0).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Maps memory at reserved addresses.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or the session's sticky error.
    pub fn back(&self, live: &Live, address: u64) -> Result<(), Code> {
        let mut state = self.state.lock();
        let slab = state.reserved.heap.slab(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !state.reserved.is_mapped(slab) {
            state = self.take_quota_in(state, live, slab.1)?;
            if state.reserved.is_mapped(slab) {
                // Another thread backed it meanwhile.
                state.used_otherwise -= slab.1;
            } else {
                live.session.post(0, &SlabMap { device: self.index, address: slab.0, size: slab.1 })?;
            }
        }
        state.reserved.backed.insert(address, slab);
        let asked = state.reserved.find(address).map_or(0, |piece| piece.asked);
        state.bound(live, address, asked)
    }

    /// Unmaps the memory at reserved addresses, after all work of the context.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn take_away(&self, live: &Live, address: u64) -> Result<(), Code> {
        if !live.is_idle() {
            // The thread that waits for the failed work gets its code.
            let _ = live.synchronise();
        }
        let mut state = self.state.lock();
        state.unmap(live, address)?;
        self.settle(state, live, 0)
    }

    /// Frees reserved addresses that have no memory.
    pub fn give_up(&self, live: &Live, address: u64) {
        self.state.lock().give_up(live, address);
    }
}

impl State {
    fn unmap(&mut self, live: &Live, address: u64) -> Result<(), Code> {
        let Some(slab) = self.reserved.backed.remove(&address) else { return Ok(()) };
        if self.reserved.is_mapped(slab) {
            return self.bound(live, address, 0);
        }
        self.used_otherwise -= slab.1;
        live.session.post(0, &SlabUnmap { address: slab.0, size: slab.1 }).map(drop)
    }

    fn give_up(&mut self, live: &Live, address: u64) {
        if let Some(piece) = self.reserved.heap.forget(address) {
            self.reserved.heap.reclaim(&piece);
            synchronous::forget(address);
        }
        for (start, size) in self.reserved.heap.release_idle(0) {
            live.session.arena().put_back(start, size);
        }
    }

    fn reserved_of(&self, live: &Live) -> Vec<u64> {
        self.reserved.heap.select(|piece| piece.context == live.id)
    }

    /// Returns whether a context's graphs have memory, which work may be using.
    pub fn has_reserved(&self, live: &Live) -> bool {
        self.reserved_of(live).iter().any(|piece| self.reserved.backed.contains_key(piece))
    }

    /// Frees all addresses and memory of a context's graphs. The work that uses the memory is complete.
    pub fn end_reserved(&mut self, live: &Live) {
        for address in self.reserved_of(live) {
            // A failed session has no memory, so the error is ignored.
            let _ = self.unmap(live, address);
            self.give_up(live, address);
        }
    }
}
