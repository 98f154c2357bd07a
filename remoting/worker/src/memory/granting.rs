//! Maps memory and asks the appliance for grants, according to the state in `slabs`.

use crate::driver::Result;
use crate::guard::defences::{Defence, stands};
use crate::memory::mapping::{HINTS, map, reserve, show_elsewhere, unmap};
use crate::memory::overwriting::scrub;
use crate::memory::slabs::overlap;
use crate::order::pending::NewSlab;
use crate::packets::Request;
use crate::session::commands::{Outcome, Session};
use crate::session::requests::Asker;
use driverapi::errors::*;
use protocol::{Grant, OLDEST_WIRE, Open, Opened, SlabMap, SlabMove, WIRE_VERSION, table_hash};

/// Checks that client and worker have the same tables for the client's wire version.
///
/// # Errors
/// A sentence that names both versions and says what to do.
fn fits(c: &Open) -> std::result::Result<(), String> {
    let (client, wire, theirs) = (&c.client_name, c.wire_version, c.table_hash);
    match table_hash(wire) {
        Some(ours) if ours == theirs => Ok(()),
        Some(ours) => Err(format!(
            "wire version {wire} of the client ({client}) is {theirs:016x}, the appliance's is {ours:016x}: \
             install the same build of remotegpu on both"
        )),
        None => Err(format!(
            "the client ({client}) speaks wire version {wire}, the appliance {OLDEST_WIRE} to {WIRE_VERSION}: upgrade the {}",
            if wire < OLDEST_WIRE { "client" } else { "appliance" }
        )),
    }
}

impl Session {
    pub fn open(&mut self, seq: u64, c: &Open) {
        if let Err(reason) = fits(c) {
            return self.end(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, &reason);
        }
        self.opened = true;
        self.out.wire = c.wire_version;
        let granularity = (0..self.device_count as i32)
            .map(|i| self.driver.device(i).and_then(|d| self.driver.granularity(d)))
            .try_fold(0, |most, g| g.map(|g| most.max(g as u64)));
        match granularity.and_then(|granularity| {
            self.memory.granularity = granularity;
            self.reserve_arena()
        }) {
            Ok(opened) => self.reply_with(seq, 0, &opened, &[]),
            Err(code) => self.reply(seq, code),
        }
    }

    fn reserve_arena(&mut self) -> Result<Opened> {
        let granularity = self.memory.granularity.max(1);
        self.memory.granularity = granularity;
        let arena = reserve(&self.driver, self.memory.arenas.len(), granularity)?;
        self.memory.arenas.push(arena);
        let image_bytes = self.images.budget;
        Ok(Opened { arena_base: arena.0, arena_size: arena.1, granularity, image_bytes })
    }

    /// Reserves another address range, because the client cannot use the addresses of the arena. Then frees an old
    /// range.
    pub fn rebase(&mut self, seq: u64, avoid: u64) -> Result<()> {
        let old = self.memory.arenas.last().copied().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if old.0 != avoid || !self.memory.slabs.is_empty() || self.memory.arenas.len() > HINTS.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let opened = self.reserve_arena()?;
        self.reply_with(seq, 0, &opened, &[]);
        if self.memory.arenas.len() > 2 {
            // One unused range is kept, so that a driver that ignores hints does not return the same range again.
            let (base, size) = self.memory.arenas[self.memory.arenas.len() - 3];
            self.driver.address_free(base, size)?;
        }
        Ok(())
    }

    pub fn slab_map(&mut self, seq: u64, c: &SlabMap) -> Result<Outcome> {
        if c.device >= self.device_count {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        self.memory.check_slab(c)?;
        self.context_on(c.device).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        let device = self.driver.device(c.device as i32)?;
        let (address, size) = (c.address, c.size);
        let place = self.memory.hide(&self.driver, size)?;
        self.memory.insert(c);
        if let Some(outcome) = self.map_inherited(seq, c, place) {
            return Ok(outcome);
        }
        self.make_room(c.device);
        let waits = self.memory.unmapping.iter().any(|range| overlap(*range, (address, size)));
        let mapped = if waits { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { map(&self.driver, place, size, device) };
        if mapped == Err(CUDA_ERROR_OUT_OF_MEMORY) {
            self.overwrite_all_freed();
        }
        if mapped == Err(CUDA_ERROR_OUT_OF_MEMORY) && !self.memory.unmapping.is_empty() {
            let c = c.clone();
            self.helpers.start_in_order(
                move |driver| map(driver, place, size, device),
                move |session: &mut Session, mapped| {
                    match session.slab_mapped(seq, &c, mapped, place, device) {
                        Ok(Outcome::Done) => {}
                        Ok(_) => return,
                        Err(code) => session.late(code),
                    }
                    session.finish(seq);
                },
            );
            return Ok(Outcome::Held);
        }
        self.slab_mapped(seq, c, mapped, place, device)
    }

    fn slab_mapped(&mut self, seq: u64, c: &SlabMap, mapped: Result<u64>, place: u64, device: i32) -> Result<Outcome> {
        match mapped {
            Ok(memory) => {
                // The context is looked up now, because it may have been destroyed while the mapping waited. Without a
                // context, zeroing fails and the memory is released.
                let context = self.context_on(c.device).map_or(0, |(id, _)| id);
                self.slab_created(seq, NewSlab { context, address: c.address, size: c.size, place, memory, device })
            }
            Err(code) => {
                self.memory.remove(c.address);
                self.memory.hidden.retain(|(at, _)| *at != place);
                Err(code)
            }
        }
    }

    pub fn slab_move(&mut self, seq: u64, c: &SlabMove) -> Result<Outcome> {
        self.memory.check_place(c.to, c.size)?;
        let slab = self.memory.slabs.get(&c.from).filter(|slab| slab.size == c.size && slab.memory != 0);
        let (memory, device) = slab.map(|slab| (slab.memory, slab.device)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let device = self.driver.device(device as i32)?;
        let unmapping = self.memory.unmapping.iter().any(|range| overlap(*range, (c.to, c.size)));
        if !unmapping && !self.hold.sends_ahead {
            show_elsewhere(&self.driver, memory, c, device)?;
            self.memory.note_move(c.from, c.to);
            self.show_to_peers(c.to)?;
            return Ok(Outcome::Done);
        }
        let (message, from, to) = (c.clone(), c.from, c.to);
        self.helpers.start_in_order(
            move |driver| show_elsewhere(driver, memory, &message, device),
            move |session: &mut Session, moved| {
                let shown = moved.and_then(|()| {
                    session.memory.note_move(from, to);
                    session.show_to_peers(to)
                });
                if let Err(code) = shown {
                    session.late(code);
                }
                session.finish(seq);
            },
        );
        Ok(Outcome::Held)
    }

    /// Unmaps a slab. Its quota is free at once. Its memory is free when another process has it, or when a helper has
    /// overwritten it. Later mappings wait for that if necessary.
    pub fn slab_unmap(&mut self, address: u64, size: u64) -> Result<()> {
        if self.memory.slabs.get(&address).is_none_or(|slab| slab.size != size || slab.memory == 0) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Some(slab) = self.memory.remove(address) else { return Ok(()) };
        self.memory.unmapping.push((address, size));
        if let Some(token) = slab.shared.filter(|token| self.memory.shared(*token).is_none()) {
            self.part_with(token, slab, address);
            return Ok(());
        }
        if self.may_offer(&slab) {
            self.offer_freed(&slab, address);
            return Ok(());
        }
        let filler = self.filler(slab.device);
        self.helpers.start_in_order(
            move |driver| {
                // This session still uses the shared memory at another address.
                let scrubbed = slab.shared.is_some() || scrub(driver, slab.device, address, size, filler).is_ok();
                (scrubbed, unmap(driver, address, size, slab.memory))
            },
            move |session: &mut Session, (scrubbed, unmapped)| {
                session.memory.unmapping.retain(|range| *range != (address, size));
                if !scrubbed {
                    session.requests.push(Request::Left { size });
                }
                if let Err(code) = unmapped {
                    session.late(code);
                }
                session.return_memory();
            },
        );
        Ok(())
    }

    pub fn grant(&mut self, seq: u64, c: &Grant) -> Result<()> {
        if c.device >= self.device_count {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        if c.least > c.want {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if c.least > 0 {
            // This process needs the memory itself, so it is not offered to others.
            self.overwrite_all_freed();
        }
        let asked = self.requests.grant(Asker::Client(seq), c.device, c.least, c.want);
        if asked { Ok(()) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
    }

    pub fn grant_return(&mut self, device: u32, size: u64) -> Result<()> {
        if size == 0 || self.memory.room(device) < size && stands(Defence::Return) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let granted = self.memory.granted.get_mut(&device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        *granted -= size;
        self.make_room(device);
        let offers = self.has_freed(device);
        if offers || !self.memory.unmapping.is_empty() {
            self.requests.push(Request::Leaving { device, size, offers });
        }
        self.memory.returning.push((device, size));
        self.return_memory();
        Ok(())
    }

    pub fn return_memory(&mut self) {
        if self.memory.unmapping.is_empty() && self.memory.freed.is_empty() {
            for (device, size) in std::mem::take(&mut self.memory.returning) {
                self.requests.push(Request::Return { device, size });
            }
        }
    }

    pub fn memory_query(&mut self, seq: u64, device: u32) -> Result<()> {
        if device >= self.device_count {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        if self.requests.memory(seq, device) { Ok(()) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
    }
}
