//! Memory that a session leaves goes to the next process of its lease that waits for as much: the same physical memory, by
//! a descriptor which the appliance passes on. Who had it overwrites it before, while the next one starts; what was freed
//! beside a kernel that still runs is zeroed by who gets it, where it is hidden, as all new memory is.

use crate::driver::{Driver, Handle, Result};
use crate::memory::mapping::{place, unmap};
use crate::memory::overwriting::{Filler, wait, with_filler};
use crate::memory::slabs::Slab;
use crate::order::pending::NewSlab;
use crate::session::commands::{Outcome, Session};
use crate::session::requests::Request;
use protocol::SlabMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// So long a session that ends waits for who wants its memory: the next process of a script has then asked, beside ten
/// busy ones too. Who comes too late waits until this process has ended, and has memory zeroed once more.
pub const OFFER: Duration = Duration::from_millis(1500);
/// So much larger than asked for it may be: what a process is granted in advance.
pub const SLACK: u64 = 64 << 20;

/// Memory that another process of the lease had.
#[derive(Debug)]
pub struct Inherited {
    pub device: u32,
    pub size: u64,
    /// Who had it has overwritten it.
    pub zeroed: bool,
    pub file: OwnedFd,
}

/// What is handed on, from the moment that the appliance has its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// Nobody has asked.
    Open,
    /// The slab at this address: whether the heir has it is not known yet.
    Handed(u64),
    /// Somebody wants what we do not have, or the appliance ends the session: all is overwritten at once.
    Over,
}

impl Session {
    /// Begins to offer what the session has, if nothing more will write to it.
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

    /// Is there something of which it is not known whose it is?
    pub fn is_handing_on(&self) -> bool {
        matches!(self.memory.offer, Some(Offer::Handed(_))) || self.is_handing_freed_on()
    }

    /// The appliance wants the session to end, and nobody waits for its memory.
    pub fn offer_no_more(&mut self) {
        if !self.is_handing_on() {
            self.memory.offer = Some(Offer::Over);
        }
    }

    /// Somebody waits for so much memory of a device. Only a session that offers something is asked.
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

    /// The appliance has passed it on, or there is nobody any more who wants it.
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

    /// Is everything complete that the GPU was given? A kernel that still runs may write to memory. Helpers write to none that
    /// is mapped.
    pub fn is_quiet(&self) -> bool {
        let done = |stream: Handle| self.driver.stream_query(stream).is_ok();
        let contexts = self.contexts.live().all(|(id, context)| self.enter(id).is_ok() && done(context.internal));
        let streams =
            || self.streams.live().all(|(_, stream)| self.enter(stream.context).is_ok() && done(stream.handle));
        contexts && streams()
    }

    /// Memory that another process of the lease had is this session's now.
    pub fn inherit(&mut self, device: u32, size: u64, zeroed: bool, file: Option<OwnedFd>) {
        let Some(file) = file.filter(|_| device < self.device_count) else { return };
        self.memory.granted(device, size);
        self.memory.inherited.push(Inherited { device, size, zeroed, file });
    }

    /// Maps what was inherited, if it is as large as this slab.
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

    /// Overwrites and releases what was inherited and is in the way of what may be mapped.
    pub fn make_room(&mut self, device: u32) {
        while self.memory.inherited_on(device) > self.memory.room(device) {
            let at = self.memory.inherited.iter().position(|each| each.device == device);
            let Some(at) = at else { return };
            self.overwrite_inherited(at);
        }
    }

    /// As [`Session::make_room`], of all that was inherited.
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
            // Who maps meanwhile waits for it.
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

/// Maps memory of a descriptor where nobody knows, and writes zeros to all of it. After an error it is not mapped.
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
