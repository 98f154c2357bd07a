//! Passes the memory of an ending session to the next process of its lease that waits for as much memory. The physical
//! memory stays the same: the appliance passes on its descriptor. The session overwrites the memory first, while the
//! next process starts. Memory that was freed while a kernel was running is zeroed by its next owner, at a hidden
//! address like all new memory.

use crate::driver::{Driver, Handle, Result};
use crate::memory::mapping::{place, unmap};
use crate::memory::offers::{Inherited, Offer, SLACK};
use crate::memory::overwriting::{Filler, wait, with_filler};
use crate::memory::slabs::Slab;
use crate::order::pending::NewSlab;
use crate::packets::Request;
use crate::session::commands::{Outcome, Session};
use protocol::SlabMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The time that an ending session waits for a process that wants its memory. In this time the next process of a script
/// asks, even on a machine with ten busy processes. A later process waits until this process has ended, and zeroes the
/// memory again.
pub const OFFER: Duration = Duration::from_millis(1500);
impl Session {
    /// Starts the offer of the session's memory to other processes of the lease, if the session has memory, has made no
    /// offer before, and the GPU has completed its work. Otherwise ends the offer. Returns whether the offer started.
    pub fn offers_memory(&mut self) -> bool {
        let offers = self.has_something_to_offer() && self.memory.offer.is_none() && self.is_quiet();
        if offers {
            self.begin_overwriting();
        }
        self.memory.offer = Some(if offers { Offer::Open } else { Offer::Over });
        offers
    }

    pub fn is_offering(&self) -> bool {
        match self.memory.offer {
            Some(Offer::Open) => self.has_something_to_offer(),
            Some(Offer::Handed(_)) => true,
            _ => false,
        }
    }

    fn has_something_to_offer(&self) -> bool {
        self.memory.slabs.values().any(|slab| slab.memory != 0 && slab.shared.is_none())
    }

    /// Whether memory was handed on and the appliance has not answered yet.
    pub fn is_handing_on(&self) -> bool {
        matches!(self.memory.offer, Some(Offer::Handed(_))) || self.is_handing_freed_on()
    }

    /// Ends the offer, unless the appliance has yet to answer. Called when the appliance wants the session to end and
    /// no process waits for its memory.
    pub fn offer_no_more(&mut self) {
        if !self.is_handing_on() {
            self.memory.offer = Some(Offer::Over);
        }
    }

    /// Hands memory on to a process that waits for at least `least` bytes on a device. The appliance asks only sessions
    /// that offer memory.
    pub fn hand_on(&mut self, device: u32, least: u64) {
        if self.memory.offer.is_none() {
            return self.hand_freed_on(device, least);
        }
        if self.memory.offer != Some(Offer::Open) {
            return;
        }
        let fits = |slab: &Slab| {
            slab.device == device
                && slab.memory != 0
                && slab.shared.is_none()
                && (least..=least.saturating_add(SLACK)).contains(&slab.size)
        };
        let found = self.memory.slabs.iter().filter(|(_, slab)| fits(slab)).min_by_key(|(_, slab)| slab.size);
        let found = found.map(|(&at, slab)| (at, slab.size, slab.memory));
        let found = found.filter(|(at, ..)| self.was_overwritten(*at));
        let exported = found.and_then(|(at, size, memory)| Some((at, size, self.driver.memory_export(memory).ok()?)));
        let Some((address, size, file)) = exported else {
            self.memory.offer = Some(Offer::Over);
            return;
        };
        self.memory.offer = Some(Offer::Handed(address));
        self.requests.hand_on(device, size, true, file);
    }

    /// Handles the appliance's answer to memory that was handed on. `taken` is false if no process wants the memory any
    /// more.
    pub fn handed_on(&mut self, taken: bool) {
        if self.freed_handed_on(taken) {
            return;
        }
        let Some(Offer::Handed(address)) = self.memory.offer else { return };
        self.memory.offer = Some(Offer::Open);
        let Some(slab) = self.memory.slabs.get(&address).filter(|_| taken) else { return };
        let (size, memory) = (slab.size, slab.memory);
        self.memory.remove(address);
        self.helpers.start_in_order(move |driver| unmap(driver, address, size, memory), |_: &mut Session, _| ());
    }

    /// Whether the GPU has completed all work of the session. A running kernel may write to memory, but helpers never
    /// write to mapped memory.
    pub fn is_quiet(&self) -> bool {
        let done = |stream: Handle| self.driver.stream_query(stream).is_ok();
        let contexts = self.contexts.live().all(|(id, context)| self.enter(id).is_ok() && done(context.internal));
        let streams =
            || self.streams.live().all(|(_, stream)| self.enter(stream.context).is_ok() && done(stream.handle));
        contexts && streams()
    }

    /// Takes over memory that belonged to another process of the lease.
    pub fn inherit(&mut self, device: u32, size: u64, zeroed: bool, file: Option<OwnedFd>) {
        let Some(file) = file.filter(|_| device < self.device_count) else { return };
        self.memory.granted(device, size);
        self.memory.inherited.push(Inherited { device, size, zeroed, file });
    }

    /// Maps inherited memory for a slab, if a piece has the slab's size. Otherwise returns `None`.
    pub fn map_inherited(&mut self, seq: u64, c: &SlabMap, hidden: u64) -> Option<Outcome> {
        let fits = |each: &Inherited| (each.device, each.size) == (c.device, c.size);
        let Inherited { device, size, zeroed, file } =
            self.memory.inherited.swap_remove(self.memory.inherited.iter().position(fits)?);
        let (filler, address) = (self.filler(device), c.address);
        let context = self.context_on(device).map_or(0, |(id, _)| id);
        self.helpers.start_in_order(
            move |driver| {
                let ordinal = driver.device(device as i32)?;
                let memory = if zeroed {
                    driver.memory_import(file.as_fd())
                } else {
                    show_zeroed(driver, device, ordinal, hidden, size, &file, filler)
                };
                memory.map(|memory| (memory, ordinal))
            },
            move |session: &mut Session, shown: Result<(u64, i32)>| {
                let code = match shown {
                    Ok((memory, device)) => {
                        let slab = NewSlab { context, address, size, place: hidden, memory, device };
                        if zeroed {
                            session.memory.hidden.retain(|(at, _)| *at != hidden);
                            session.show(&slab, 0)
                        } else {
                            session.slab_zeroed(&slab, 0)
                        }
                    }
                    Err(code) => {
                        session.memory.remove(address);
                        session.memory.hidden.retain(|(at, _)| *at != hidden);
                        Err(code)
                    }
                };
                if let Err(code) = code {
                    session.late(code);
                }
                session.finish(seq);
            },
        );
        Some(Outcome::Held)
    }

    /// Overwrites and releases inherited memory until the rest and the used memory fit into the grant.
    pub fn make_room(&mut self, device: u32) {
        while self.memory.inherited_on(device) > self.memory.room(device) {
            let at = self.memory.inherited.iter().position(|each| each.device == device);
            let Some(at) = at else { return };
            self.overwrite_inherited(at);
        }
    }

    /// Overwrites and releases all inherited memory.
    pub fn let_all_go(&mut self) {
        while !self.memory.inherited.is_empty() {
            self.overwrite_inherited(0);
        }
    }

    fn overwrite_inherited(&mut self, at: usize) {
        let Inherited { device, size, zeroed, file } = self.memory.inherited.swap_remove(at);
        if zeroed {
            return;
        }
        let (filler, hidden) = (self.filler(device), self.memory.hide(&self.driver, size));
        if let Ok(hidden) = hidden {
            // Later mappings wait until this range is unmapped.
            self.memory.unmapping.push((hidden, size));
        }
        self.helpers.start_in_order(
            move |driver| {
                let ordinal = driver.device(device as i32)?;
                let hidden = hidden?;
                let memory = show_zeroed(driver, device, ordinal, hidden, size, &file, filler)?;
                unmap(driver, hidden, size, memory)
            },
            move |session: &mut Session, released| {
                if let Ok(hidden) = hidden {
                    session.memory.unmapping.retain(|range| *range != (hidden, size));
                    session.memory.hidden.retain(|range| *range != (hidden, size));
                }
                if released.is_err() {
                    session.requests.push(Request::Left { size });
                }
                session.return_memory();
            },
        );
    }
}

/// Maps memory from a descriptor at a hidden address and zeroes it. After an error the memory is not mapped.
fn show_zeroed(
    driver: &Driver,
    device: u32,
    ordinal: i32,
    hidden: u64,
    size: u64,
    file: &OwnedFd,
    filler: Option<Filler>,
) -> Result<u64> {
    let memory = place(driver, driver.memory_import(file.as_fd())?, hidden, size, ordinal)?;
    let zeroed = with_filler(driver, device, filler, |filler| {
        driver.set_bytes(hidden, 0, size, filler.stream)?;
        wait(driver, filler.stream)
    });
    if let Err(code) = zeroed {
        let _ = unmap(driver, hidden, size, memory);
        return Err(code);
    }
    Ok(memory)
}
