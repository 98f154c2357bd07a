//! Allocations on one device. The worker maps slabs within the lease's grants. Memory that the program freed is reused
//! only after all work that could use it has completed.

use super::heap::{PIECE_ALIGN, Piece, round_up};
use super::shared_memory::Ended;
use super::state::{DeviceMemory, Freed, Held, Origin, SLACK, State};
use super::synchronous;
use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::platform::{self, Device};
use crate::locks::{Wait, assert_may_wait};
use driverapi::errors::*;
use protocol::{ContextFence, Grant, GrantReturn, Granted, MemoryQuery, MemoryState, SlabMap, SlabUnmap, StreamFence};
use std::sync::Arc;

/// The minimum size in bytes of a slab. Small allocations share slabs.
pub(super) const SMALL_SLAB: u64 = 2 << 20;
/// The number of freed bytes without a fence at which a fence is sent. One is also sent after `BATCH_PIECES` freed
/// pieces, or when memory is short.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_PIECES: usize = 32;

impl DeviceMemory {
    /// Allocates `size` bytes and returns their address.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if `size` is 0. `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room, even after all
    /// freed memory was reclaimed.
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
        // Work from before the reuse may still use the whole piece.
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

    /// Ensures that the grants allow `size` more bytes of slabs. Requests a larger grant from the worker if necessary.
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
            assert_may_wait(Wait::Work);
            // The request may wait until other processes return memory. The lock is released, so this process continues
            // and may return memory itself.
            drop(state);
            let granted: Granted = live.session.call(0, &ask)?.success()?.decode()?;
            state = self.state.lock();
            state.granted = state.granted.saturating_add(granted.size);
            if granted.size < least {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
    }

    /// Frees the allocation that starts at `address`. With `stream_id`, the memory is reused after that stream's
    /// earlier work.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if no allocation of this device starts at `address`.
    pub fn free(&self, address: u64, stream_id: Option<(&Arc<Live>, u64)>) -> Result<(), Code> {
        let mut state = self.state.lock();
        let piece = state.forget(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Some(owner) = self.owner_in(&state, &piece) else {
            // No work of a destroyed context runs on the device.
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
            // As with every CUDA driver, a large amount of memory must be free when the call that frees it returns.
            state = self.wait_for_freed_at_once(state)?;
        }
        self.settle(state, &owner, 0)
    }

    /// Returns idle memory beyond the slack to the worker, so that other processes of the share can use it. `unmapped`
    /// is the size that the program has just unmapped. If it is large, the whole unused quota is returned, so that the
    /// worker can give it to another process.
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

    /// Waits until the appliance has processed all earlier returns of quota. It sends an empty request, which is
    /// answered after them.
    fn be_heard(&self, live: &Live) -> Result<(), Code> {
        live.session.call(0, &Grant { device: self.index, least: 0, want: 0 }).map(drop)
    }

    /// Frees all allocations of a context that is about to be destroyed. Memory of pools belongs to the device and is
    /// kept, unless `pools` is set.
    pub fn free_context(&self, live: &Arc<Live>, pools: bool) {
        let is_reserved = self.state.lock().has_reserved(live);
        if is_reserved && !live.is_idle() {
            let _ = live.synchronise();
        }
        // A failed session has no memory, so the error is ignored.
        let _ = self.forget_context(live, pools).unmap();
    }

    fn forget_context(&self, live: &Arc<Live>, pools: bool) -> Ended {
        let state = &mut *self.state.lock();
        for address in state.heap.select(|piece| piece.context == live.id && (pools || piece.pool == 0)) {
            if let Some(piece) = state.forget(address) {
                let _ = state.note_freed(live, None, piece);
            }
        }
        // A failed session allocates nothing any more, so it needs no fence.
        let _ = state.fence_all();
        state.end_reserved(live);
        state.contexts.remove(&live.id);
        state.end_imported(live)
    }

    /// Returns the free and the total bytes of the share.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn info(&self, live: &Live) -> Result<(u64, u64), Code> {
        // The worker returns the memory that it had requested for contexts before it reports that they are destroyed.
        self.wait_for_contexts()?;
        let answer = live.session.call(0, &MemoryQuery { device: self.index })?;
        let share: MemoryState = answer.success()?.decode()?;
        self.wait_for_contexts()?;
        Ok((share.free.saturating_add(self.unused()).min(share.limit), share.limit))
    }

    /// Returns the number of bytes that the worker granted to this process and that nothing uses.
    pub fn unused(&self) -> u64 {
        self.state.lock().unused()
    }

    /// Like [`Self::unused`], but 0 if another thread has the lock. NVML must not wait for a session.
    pub fn unused_if_free(&self) -> u64 {
        self.state.try_lock().map_or(0, |mut state| state.unused())
    }

    /// Returns the number of bytes that the program has allocated from a pool.
    pub fn pool_use(&self, pool: u64) -> u64 {
        self.state.lock().pools.get(&pool).copied().unwrap_or(0)
    }

    /// Returns the allocation that contains an address.
    pub fn find(&self, address: u64) -> Option<Piece> {
        let state = self.state.lock();
        let of_graphs = || state.reserved.find(address);
        state.heap.find(address).or_else(of_graphs).or_else(|| state.shared.find(address)).copied()
    }

    /// Returns the context of a piece. If memory of a pool has outlived its context, returns another context of the
    /// device.
    pub fn owner(&self, piece: &Piece) -> Option<Arc<Live>> {
        self.owner_in(&self.state.lock(), piece)
    }

    fn owner_in(&self, state: &State, piece: &Piece) -> Option<Arc<Live>> {
        let of_device = |live: &Arc<Live>| live.device.index == self.index;
        let current = || context::current().ok().filter(of_device);
        let other = || current().or_else(|| context::all_live().into_iter().find(of_device));
        state.contexts.get(&piece.context).cloned().or_else(other)
    }

    /// Maps memory of the device at addresses that the caller took from the arena. The caller has taken the quota
    /// ([`DeviceMemory::take_quota`]).
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn map_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        live.session.post(0, &SlabMap { device: self.index, address, size }).map(drop)
    }

    /// Unmaps memory that [`DeviceMemory::map_at`] mapped. Nothing may use it any more. The caller puts the quota back
    /// ([`DeviceMemory::put_back_quota`]).
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn unmap_at(&self, live: &Live, address: u64, size: u64) -> Result<(), Code> {
        live.session.post(0, &SlabUnmap { address, size }).map(drop)
    }

    /// Returns all unused memory to the worker. Used for `cuMemPoolTrimTo`, and before a further context is created,
    /// because the worker requests memory for it from the appliance.
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
            // After this, all work that has completed by now is known to be complete.
            self.be_heard(live)?;
            state = self.state.lock();
            state.collect();
        }
        unmap_idle(&mut state, live, 0)?;
        let unused = state.unused_grant();
        if unused > 0 { self.return_grant(state, live, unused) } else { Ok(()) }
    }
}

/// Unmaps slabs without pieces until at most `keep` bytes of them remain. Returns the size of the largest.
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
    fn unused(&mut self) -> u64 {
        self.collect();
        self.unused_grant() + self.heap.mapped() - self.heap.used()
    }

    pub(super) fn unused_grant(&self) -> u64 {
        self.granted + self.shared.exported_bytes() - self.heap.mapped() - self.used_otherwise
    }

    /// Removes a piece that the program has freed.
    fn forget(&mut self, address: u64) -> Option<Piece> {
        let piece = self.heap.forget(address)?;
        synchronous::forget(address);
        if let Some(used) = self.pools.get_mut(&piece.pool) {
            *used -= piece.size;
        }
        Some(piece)
    }

    /// Reuses memory that was freed on the same stream. Later work of that stream can use it at once.
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

    /// Reclaims the freed pieces that no work uses any more.
    pub(super) fn collect(&mut self) {
        self.collect_quota();
        let is_finished =
            |freed: &mut Freed| freed.fence.as_ref().is_some_and(|fence| fence.is_finished()) || freed.live.is_idle();
        for freed in self.freed.extract_if(.., is_finished).collect::<Vec<_>>() {
            self.reclaim_all(&freed);
        }
    }

    /// Returns the number of freed bytes that are not stream-ordered and that work may still use.
    fn freed_at_once(&self) -> u64 {
        self.freed.iter().filter(|freed| freed.stream_id.is_none()).map(|freed| freed.bytes).sum()
    }
}

impl DeviceMemory {
    /// Waits until some freed memory has been reclaimed.
    ///
    /// # Errors
    /// `nothing` if no freed memory is pending, or the session's sticky error.
    pub(super) fn wait_for_freed(&self, nothing: Code) -> Result<Held<'_>, Code> {
        assert_may_wait(Wait::Work);
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

    /// Waits until no work uses the freed memory that is not stream-ordered. Releases the lock while it waits.
    fn wait_for_freed_at_once<'a>(&'a self, mut state: Held<'a>) -> Result<Held<'a>, Code> {
        assert_may_wait(Wait::Work);
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

/// Returns the allocation that contains an address, and its device.
pub fn find_allocation(address: u64) -> Option<(&'static Device, Piece)> {
    platform::all().ok()?.iter().find_map(|device| Some((device, device.memory.find(address)?)))
}
