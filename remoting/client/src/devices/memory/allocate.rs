//! Allocations on one device. Slabs come from the worker within the lease's grants; pieces that the program freed are
//! handed out again only after everything that could use them has completed.

use super::heap::{PIECE_ALIGN, Piece, round_up};
use super::state::{DeviceMemory, Freed, Held, Origin, SLACK, State};
use super::synchronous;
use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::platform::{self, Device};
use driverapi::errors::*;
use protocol::{ContextFence, Grant, GrantReturn, Granted, MemoryQuery, MemoryState, SlabMap, SlabUnmap, StreamFence};
use std::sync::Arc;

/// Small allocations share slabs of at least this size.
pub(super) const SMALL_SLAB: u64 = 2 << 20;
/// A fence is sent when this many bytes or pieces wait for one, or when memory is short.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_PIECES: usize = 32;

impl DeviceMemory {
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room even after everything freed has come back.
    pub fn allocate(&self, live: &Arc<Live>, size: u64, origin: Origin) -> Result<u64, Code> {
        if size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = self.state.lock();
        state.contexts.entry(live.id).or_insert_with(|| Arc::clone(live));
        let reused = state.reuse_on_stream(live, size, origin);
        let (mut state, address) = match reused {
            Some(address) => (state, address),
            None => self.allocate_anew(state, live, size, origin)?,
        };
        // Work before the reuse may still use all of the piece.
        let whole = |state: &State| state.heap.find(address).map_or(size, |piece| piece.size);
        let bytes = if reused.is_some() && !live.is_idle() { whole(&state) } else { size };
        state.bound(live, address, bytes)?;
        if let Some(Piece { pool, size, .. }) = state.heap.find(address).copied() {
            *state.pools.entry(pool).or_default() += size;
        }
        Ok(address)
    }

    fn allocate_anew<'a>(
        &'a self,
        mut state: Held<'a>,
        live: &Live,
        size: u64,
        origin: Origin,
    ) -> Result<(Held<'a>, u64), Code> {
        state.collect();
        loop {
            if let Some(address) = state.heap.place(size, live.id, origin.pool) {
                return Ok((state, address));
            }
            state.fence_all()?;
            state = match self.add_slab(state, live, size) {
                Err(CUDA_ERROR_OUT_OF_MEMORY) => self.wait_for_freed(CUDA_ERROR_OUT_OF_MEMORY)?,
                other => other?,
            };
        }
    }

    fn add_slab<'a>(&'a self, state: Held<'a>, live: &Live, size: u64) -> Result<Held<'a>, Code> {
        let arena = live.session.arena();
        let exact = round_up(size, arena.granularity()).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let roomy = round_up(size.max(SMALL_SLAB), arena.granularity()).unwrap_or(exact);
        let (mut state, slab) = match self.make_room(state, live, roomy) {
            Ok(state) => (state, roomy),
            Err(CUDA_ERROR_OUT_OF_MEMORY) if exact < roomy => (self.make_room(self.state.lock(), live, exact)?, exact),
            Err(code) => return Err(code),
        };
        let address = arena.take(slab, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        live.session.post(0, &SlabMap { device: self.index, address, size: slab })?;
        state.heap.add_slab(address, slab);
        Ok(state)
    }

    /// Sees to it that the grants allow `size` more bytes of slabs.
    pub(super) fn make_room<'a>(&'a self, mut state: Held<'a>, live: &Live, size: u64) -> Result<Held<'a>, Code> {
        loop {
            if state.unused_grant() < size {
                unmap_idle(&mut state, live, 0)?;
            }
            let unused = state.unused_grant();
            if unused >= size {
                return Ok(state);
            }
            let least = size - unused;
            let ask = Grant { device: self.index, least, want: least.max(SLACK) };
            // The answer may wait for other processes to return memory; this process continues meanwhile, and may
            // return some itself.
            drop(state);
            let granted: Granted = live.session.call(0, &ask)?.success()?.decode()?;
            state = self.state.lock();
            state.granted = state.granted.saturating_add(granted.size);
            if granted.size < least {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if no allocation of this device starts here.
    pub fn free(&self, address: u64, stream_id: Option<(&Arc<Live>, u64)>) -> Result<(), Code> {
        let mut state = self.state.lock();
        let piece = state.forget(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Some(owner) = self.owner_in(&state, &piece) else {
            // Without a context nothing runs on the device.
            state.heap.reclaim(&piece);
            return Ok(());
        };
        if owner.is_idle() {
            state.reclaim(&owner, &piece);
        } else {
            match stream_id {
                Some((live, stream_id)) => state.note_freed(live, Some(stream_id), piece)?,
                None => state.note_freed(&owner, None, piece)?,
            }
        }
        state.collect();
        if stream_id.is_none() && state.freed_at_once() > self.slack {
            // As with every driver, much memory is free when the call that frees it has returned.
            state = self.wait_for_freed_at_once(state)?;
        }
        self.settle(state, &owner, 0)
    }

    /// Gives back memory beyond the slack, so that other processes of the share can have it. `unmapped`: the size that
    /// the program has just unmapped. For large memory all of its quota goes: the worker can hand it on then.
    pub(super) fn settle(&self, mut state: Held, live: &Live, unmapped: u64) -> Result<(), Code> {
        let mut largest = unmapped;
        if state.heap.idle() > self.slack {
            largest = largest.max(unmap_idle(&mut state, live, self.slack)?);
        }
        let (unused, kept) = (state.unused_grant(), if largest > 2 * self.slack { 0 } else { self.slack });
        if unused > 2 * self.slack { self.return_grant(state, live, unused - kept) } else { Ok(()) }
    }

    fn return_grant(&self, mut state: Held, live: &Live, size: u64) -> Result<(), Code> {
        state.granted -= size;
        live.session.post(0, &GrantReturn { device: self.index, size })?;
        drop(state);
        self.be_heard(live)
    }

    /// Returns when the appliance has processed what was returned before. An empty request is answered in its order.
    fn be_heard(&self, live: &Live) -> Result<(), Code> {
        live.session.call(0, &Grant { device: self.index, least: 0, want: 0 }).map(drop)
    }

    /// Frees everything that a context allocated; the context is about to be destroyed. Memory of pools is the device's
    /// and stays, unless `pools` go, too.
    pub fn free_context(&self, live: &Arc<Live>, pools: bool) {
        let state = &mut *self.state.lock();
        for address in state.heap.select(|piece| piece.context == live.id && (pools || piece.pool == 0)) {
            if let Some(piece) = state.forget(address) {
                let _ = state.note_freed(live, None, piece);
            }
        }
        // A session that has failed needs no fence: it allocates nothing any more.
        let _ = state.fence_all();
        state.end_reserved(live);
        state.end_imported(live);
        state.contexts.remove(&live.id);
    }

    /// Free and total bytes of the share.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn info(&self, live: &Live) -> Result<(u64, u64), Code> {
        // The worker returns what it had requested for contexts before it reports that they are gone.
        self.wait_for_contexts()?;
        let answer = live.session.call(0, &MemoryQuery { device: self.index })?;
        let share: MemoryState = answer.success()?.decode()?;
        self.wait_for_contexts()?;
        let state = &mut *self.state.lock();
        state.collect();
        let own = state.unused_grant() + state.heap.mapped() - state.heap.used();
        Ok((share.free.saturating_add(own).min(share.limit), share.limit))
    }

    /// Returns the bytes that the program has of a pool.
    pub fn pool_use(&self, pool: u64) -> u64 {
        self.state.lock().pools.get(&pool).copied().unwrap_or(0)
    }

    /// The allocation that holds an address.
    pub fn find(&self, address: u64) -> Option<Piece> {
        let state = self.state.lock();
        let of_graphs = || state.reserved.find(address);
        state.heap.find(address).or_else(of_graphs).or_else(|| state.shared.find(address)).copied()
    }

    /// Returns the context that a piece belongs to; if memory of a pool has outlived it, a context of the device.
    pub fn owner(&self, piece: &Piece) -> Option<Arc<Live>> {
        self.owner_in(&self.state.lock(), piece)
    }

    fn owner_in(&self, state: &State, piece: &Piece) -> Option<Arc<Live>> {
        let of_device = |live: &Arc<Live>| live.device.index == self.index;
        let current = || context::current().ok().filter(of_device);
        let other = || current().or_else(|| context::all_live().into_iter().find(of_device));
        state.contexts.get(&piece.context).cloned().or_else(other)
    }

    /// Puts memory at addresses that the caller took from the arena.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or the session's sticky error.
    pub fn map_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        self.take_quota(live, size)?;
        live.session.post(0, &SlabMap { device: self.index, address, size }).map(drop)
    }

    /// Takes it away again; nothing may use it any more.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn unmap_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        live.session.post(0, &SlabUnmap { address, size })?;
        self.put_back_quota(live, size)
    }

    /// Gives back everything that is not in use: for `cuMemPoolTrimTo`, and for a further context, for which the worker
    /// asks the appliance.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn trim(&self, live: &Live) -> Result<(), Code> {
        self.wait_for_contexts()?;
        let mut state = self.state.lock();
        state.collect();
        if !state.freed.is_empty() {
            state.fence_all()?;
            drop(state);
            // After this, all work that is complete now is known to be complete.
            self.be_heard(live)?;
            state = self.state.lock();
            state.collect();
        }
        unmap_idle(&mut state, live, 0)?;
        let unused = state.unused_grant();
        if unused > 0 { self.return_grant(state, live, unused) } else { Ok(()) }
    }
}

/// Returns the size of the largest.
fn unmap_idle(state: &mut State, live: &Live, keep: u64) -> Result<u64, Code> {
    let idle = state.heap.release_idle(keep);
    let largest = idle.iter().map(|(_, size)| *size).max().unwrap_or(0);
    for (address, size) in idle {
        live.session.post(0, &SlabUnmap { address, size })?;
        live.session.arena().put_back(address, size);
        state.shared.forget_slab(address);
    }
    Ok(largest)
}

impl State {
    pub(super) fn unused_grant(&self) -> u64 {
        self.granted + self.shared.exported_bytes() - self.heap.mapped() - self.used_otherwise
    }

    /// Removes a piece that the program does not need any more.
    fn forget(&mut self, address: u64) -> Option<Piece> {
        let piece = self.heap.forget(address)?;
        synchronous::forget(address);
        if let Some(used) = self.pools.get_mut(&piece.pool) {
            *used -= piece.size;
        }
        Some(piece)
    }

    /// Finds memory freed on a stream: work that follows on that stream can use it at once.
    fn reuse_on_stream(&mut self, live: &Live, size: u64, origin: Origin) -> Option<u64> {
        let stream_id = origin.stream_id?;
        let fits = |piece: &Piece| piece.size >= size && piece.size / 2 <= size.max(PIECE_ALIGN);
        for freed in
            self.freed.iter_mut().filter(|freed| freed.stream_id == Some(stream_id) && freed.live.id == live.id)
        {
            if let Some(place) = freed.pieces.iter().position(fits) {
                let piece = freed.pieces.swap_remove(place);
                freed.bytes -= piece.size;
                self.heap.hand_out_again(Piece { asked: size, context: live.id, pool: origin.pool, ..piece });
                return Some(piece.address);
            }
        }
        None
    }

    fn note_freed(&mut self, live: &Arc<Live>, stream_id: Option<u64>, piece: Piece) -> Result<(), Code> {
        let open = |freed: &Freed| freed.fence.is_none() && freed.stream_id == stream_id && freed.live.id == live.id;
        let place = self.freed.iter().position(open).unwrap_or_else(|| {
            self.freed.push(Freed { live: Arc::clone(live), stream_id, pieces: Vec::new(), bytes: 0, fence: None });
            self.freed.len() - 1
        });
        let freed = &mut self.freed[place];
        freed.bytes += piece.size;
        freed.pieces.push(piece);
        if freed.bytes >= BATCH_BYTES || freed.pieces.len() >= BATCH_PIECES { freed.ask_for_fence() } else { Ok(()) }
    }

    pub(super) fn fence_all(&mut self) -> Result<(), Code> {
        self.freed.iter_mut().try_for_each(Freed::ask_for_fence)
    }

    /// Takes back pieces that are known to be unused.
    pub(super) fn collect(&mut self) {
        self.collect_quota();
        let is_finished =
            |freed: &mut Freed| freed.fence.as_ref().is_some_and(|fence| fence.is_finished()) || freed.live.is_idle();
        for freed in self.freed.extract_if(.., is_finished).collect::<Vec<_>>() {
            self.reclaim_all(&freed);
        }
    }

    /// Counts the bytes that the program freed in no stream's order, and that are not known to be unused.
    fn freed_at_once(&self) -> u64 {
        self.freed.iter().filter(|freed| freed.stream_id.is_none()).map(|freed| freed.bytes).sum()
    }
}

impl DeviceMemory {
    /// Waits until something freed has come back.
    ///
    /// # Errors
    /// `nothing` if nothing is on its way, or the session's sticky error.
    pub(super) fn wait_for_freed(&self, nothing: Code) -> Result<Held<'_>, Code> {
        let mut state = self.state.lock();
        state.fence_all()?;
        let freed = state.freed.first().map(|freed| (Arc::clone(&freed.live.session), freed.fence.clone()));
        let leaving = || {
            let first = state.leaving.first();
            first.map(|leaving| (Arc::clone(&leaving.session), Some(Arc::clone(&leaving.fence))))
        };
        let (session, fence) = freed.or_else(leaving).ok_or(nothing)?;
        drop(state);
        if let Some(fence) = fence {
            session.flush()?;
            session.wait(&fence)?;
        }
        state = self.state.lock();
        state.collect();
        Ok(state)
    }

    /// Waits until all is unused that was freed in no stream's order. Others go on meanwhile.
    fn wait_for_freed_at_once<'a>(&'a self, mut state: Held<'a>) -> Result<Held<'a>, Code> {
        state.fence_all()?;
        let freed = state.freed.iter().filter(|freed| freed.stream_id.is_none());
        let fences: Vec<_> = freed.map(|freed| (Arc::clone(&freed.live.session), freed.fence.clone())).collect();
        drop(state);
        for (session, fence) in fences {
            session.flush()?;
            fence.map(|fence| session.wait(&fence)).transpose()?;
        }
        state = self.state.lock();
        state.collect();
        Ok(state)
    }
}

impl Freed {
    fn ask_for_fence(&mut self) -> Result<(), Code> {
        if self.fence.is_none() {
            let session = &self.live.session;
            let (token, slot) = session.new_fence();
            match self.stream_id {
                Some(stream_id) => session.post(stream_id, &StreamFence { token })?,
                None => session.post(0, &ContextFence { context: self.live.id, token })?,
            };
            self.fence = Some(slot);
        }
        Ok(())
    }
}

/// The device whose allocation holds an address, and the allocation.
pub fn find_allocation(address: u64) -> Option<(&'static Device, Piece)> {
    platform::all().ok()?.iter().find_map(|device| Some((device, device.memory.find(address)?)))
}
