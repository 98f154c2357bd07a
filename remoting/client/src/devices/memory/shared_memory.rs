//! Memory that processes of a lease share: exported slabs of this process, and imported slabs of others. Only whole
//! slabs can be imported, so a process can also read what lies next to the allocation that it imported.

use super::heap::{PIECE_ALIGN, Piece, round_up};
use super::state::{DeviceMemory, Imported, Place, Shared, State};
use crate::Code;
use crate::devices::context::Live;
use crate::devices::platform::{self, Access, Device};
use crate::session::mint;
use driverapi::errors::*;
use protocol::{Exported, SlabExport, SlabImport, SlabUnmap};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Shared {
    /// Returns the number of bytes of exported slabs. The lease is charged for them instead of this process.
    pub fn exported_bytes(&self) -> u64 {
        self.exported.values().map(|(size, _)| size).sum()
    }

    /// Removes an exported slab after it was unmapped.
    pub fn forget_slab(&mut self, address: u64) {
        self.exported.remove(&address);
    }

    pub fn find(&self, address: u64) -> Option<&Piece> {
        let (_, slab) = self.imported.range(..=address).next_back()?;
        let (_, (piece, _)) = slab.open.range(..=address).next_back()?;
        (address - piece.address < piece.size).then_some(piece)
    }
}

impl DeviceMemory {
    /// Exports the allocation that contains `address` to the other processes of the lease.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the memory is not from `cuMemAlloc`, `CUDA_ERROR_OUT_OF_MEMORY` if the lease has
    /// reached its limit of exports.
    pub fn export(&self, address: u64) -> Result<Place, Code> {
        let state = &mut *self.state.lock();
        let piece = *state.heap.find(address).filter(|piece| piece.pool == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (start, slab_size) = state.heap.slab(piece.address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let token = match state.shared.exported.get(&start) {
            Some((_, token)) => *token,
            None => {
                let live = state.contexts.get(&piece.context).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let exported: Exported = live.session.call(0, &SlabExport { address: start })?.success()?.decode()?;
                state.granted -= slab_size;
                state.shared.exported.insert(start, (slab_size, exported.token));
                exported.token
            }
        };
        Ok(Place { token, slab_size, offset: piece.address - start, size: piece.asked })
    }

    /// Imports an allocation that another process exported, and returns its address in this process.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CONTEXT` for an export of this process, `CUDA_ERROR_INVALID_HANDLE` if the exporter has
    /// freed it, `CUDA_ERROR_OUT_OF_MEMORY` if no addresses are free, `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED` if the
    /// context's device cannot access memory of `device`, which has the allocation.
    pub fn import(&self, live: &Arc<Live>, device: &'static Device, place: &Place) -> Result<u64, Code> {
        let state = &mut *self.state.lock();
        if state.shared.exported.values().any(|(_, token)| *token == place.token) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let size = round_up(place.size, PIECE_ALIGN).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if place.offset.checked_add(size).is_none_or(|end| size == 0 || end > place.slab_size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let known = state.shared.imported.iter().find(|(_, slab)| slab.token == place.token);
        let base = match known.map(|(base, slab)| (*base, slab.live.id, slab.size)) {
            // As CUDA documents, only one context of a process can open another process's memory.
            Some((_, context, size)) if context != live.id || size != place.slab_size => {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            Some((base, ..)) => base,
            None => self.map_imported(state, live, device, place)?,
        };
        let address = base + place.offset;
        if let Some(slab) = state.shared.imported.get_mut(&base) {
            let piece = Piece { address, asked: place.size, size, context: live.id, pool: 0, id: mint() };
            slab.open.entry(address).or_insert((piece, 0)).1 += 1;
        }
        state.bound(live, address, place.size)?;
        Ok(address)
    }

    fn map_imported(
        &self,
        state: &mut State,
        live: &Arc<Live>,
        device: &'static Device,
        place: &Place,
    ) -> Result<u64, Code> {
        let (arena, size) = (live.session.arena(), place.slab_size);
        if !size.is_multiple_of(arena.granularity()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let own = std::ptr::eq(device, live.device);
        let access = if own { None } else { Some(Access::new(live.device, device)?) };
        let address = arena.take(size, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let import = SlabImport { device: self.index, address, size, token: place.token };
        if let Err(code) = live.session.call(0, &import).and_then(|answer| answer.success().map(drop)) {
            arena.put_back(address, size);
            return Err(code);
        }
        state.contexts.entry(live.id).or_insert_with(|| Arc::clone(live));
        if !own {
            live.at_end(end_on_other_devices);
        }
        let slab =
            Imported { size, token: place.token, live: Arc::clone(live), _access: access, open: BTreeMap::new() };
        state.shared.imported.insert(address, slab);
        Ok(address)
    }

    /// Closes an imported allocation.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if none is open at this address, or the code of failed work.
    pub fn close_imported(&self, address: u64) -> Result<(), Code> {
        self.forget_imported(address)?.unmap()
    }

    fn forget_imported(&self, address: u64) -> Result<Ended, Code> {
        let state = &mut *self.state.lock();
        let slabs = &mut state.shared.imported;
        let (&base, slab) = slabs.range_mut(..=address).next_back().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (_, times) = slab.open.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        *times -= 1;
        if *times > 0 {
            return Ok(Ended::default());
        }
        slab.open.remove(&address);
        if !slab.open.is_empty() {
            let live = Arc::clone(&slab.live);
            return state.bound(&live, address, 0).map(|()| Ended::default());
        }
        Ok(Ended(slabs.remove(&base).map(|slab| (base, slab)).into_iter().collect()))
    }
}

/// Closes a context's imports from other devices. The memory of the context's own device closes its imports itself.
fn end_on_other_devices(live: &Arc<Live>) {
    for device in platform::all().unwrap_or_default() {
        if !std::ptr::eq(device, live.device) {
            let ended = {
                let state = &mut *device.memory.state.lock();
                state.contexts.remove(&live.id);
                state.end_imported(live)
            };
            // A failed session has no memory, so the error is ignored.
            let _ = ended.unmap();
        }
    }
}

/// Imported slabs that nothing uses any more, by their addresses.
#[must_use]
#[derive(Default)]
pub struct Ended(Vec<(u64, Imported)>);

impl Ended {
    /// Unmaps the slabs. Waits for the work of their contexts, so the caller must not hold the lock of the memory.
    ///
    /// # Errors
    /// The first error. The others are unmapped all the same.
    pub fn unmap(self) -> Result<(), Code> {
        let mut all = Ok(());
        for (base, slab) in self.0 {
            let done = if slab.live.is_idle() { Ok(()) } else { slab.live.synchronise() };
            let posted = slab.live.session.post(0, &SlabUnmap { address: base, size: slab.size });
            if posted.is_ok() {
                slab.live.session.arena().put_back(base, slab.size);
            }
            all = all.and(posted).and(done);
        }
        all
    }
}

impl State {
    /// Removes all imports of a context.
    pub fn end_imported(&mut self, live: &Live) -> Ended {
        let all = std::mem::take(&mut self.shared.imported);
        let (ends, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, slab)| slab.live.id == live.id);
        self.shared.imported = stay.into_iter().collect();
        Ended(ends)
    }
}
