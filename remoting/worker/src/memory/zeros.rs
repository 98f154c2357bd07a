//! Zeroing of memory before a tenant can access it, and overwriting of memory before it leaves a session.
//!
//! New memory is zeroed at a random address in a separate range, and then mapped for the tenant. A kernel that already
//! runs could read the memory there. But it would have to guess the address, and a wrong guess destroys its context.

use crate::driver::events::RealEvent;
use crate::driver::{Code, Driver, Result};
use crate::memory::mapping::{place, reserve, unmap};
use crate::memory::overwriting::{Filler, scrub};
use crate::memory::slabs::{Memory, overlap};
use crate::order::completions::{Action, state};
use crate::order::pending::NewSlab;
use crate::packets::Request;
use crate::session::commands::{Outcome, Session};
use driverapi::errors::*;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

impl Memory {
    /// Returns a random hidden address for `size` bytes.
    pub fn hide(&mut self, driver: &Driver, size: u64) -> Result<u64> {
        let granularity = self.granularity.max(1);
        if self.hiding.is_none_or(|(_, whole)| whole / 4 < size) {
            // This runs at the first call, and later only for a slab that is larger than a quarter of the range.
            self.hiding = Some(reserve(driver, self.arenas.len() + 3, granularity)?);
        }
        let (base, whole) = self.hiding.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let places = whole.checked_sub(size).ok_or(CUDA_ERROR_OUT_OF_MEMORY)? / granularity + 1;
        loop {
            let mut number = [0; 8];
            getrandom(&mut number[..], GetRandomFlags::empty()).map_err(|_| CUDA_ERROR_UNKNOWN)?;
            let at = base + u64::from_le_bytes(number) % places * granularity;
            if !self.hidden.iter().any(|range| overlap(*range, (at, size))) {
                self.hidden.push((at, size));
                return Ok(at);
            }
        }
    }
}

impl Session {
    /// Zeroes a new slab at its hidden address, and then maps it for the tenant.
    pub fn slab_created(&mut self, seq: u64, slab: NewSlab) -> Result<Outcome> {
        match self.zero(&slab) {
            Ok(event) => match state(&self.driver, &self.current, &event) {
                Some(code) => self.slab_zeroed(&slab, code).map(|()| Outcome::Done),
                None => {
                    self.watch(seq, event, Action::Zeroed(slab));
                    Ok(Outcome::Held)
                }
            },
            Err(code) => self.slab_zeroed(&slab, code).map(|()| Outcome::Done),
        }
    }

    fn zero(&mut self, slab: &NewSlab) -> Result<Rc<RealEvent>> {
        self.enter(slab.context)?;
        let context = self.contexts.get(slab.context)?;
        let event = context.events.take(&self.driver, false)?;
        self.driver.set_bytes(slab.place, 0, slab.size, context.internal)?;
        self.driver.event_record(event.handle, context.internal, 0)?;
        Ok(event)
    }

    /// Maps a zeroed slab for its tenant. If `code` is an error of the zeroing, releases the slab instead.
    pub fn slab_zeroed(&mut self, slab: &NewSlab, code: Code) -> Result<()> {
        let NewSlab { size, place: hidden, memory, .. } = *slab;
        let failed = code != 0;
        self.helpers.start_in_order(
            move |driver| if failed { unmap(driver, hidden, size, memory) } else { driver.memory_unmap(hidden, size) },
            move |session: &mut Session, unmapped| {
                session.memory.hidden.retain(|range| *range != (hidden, size));
                if let Err(code) = unmapped {
                    session.late(code);
                }
            },
        );
        self.show(slab, code)
    }

    /// Maps the memory of a slab for its tenant, unless `code` is an error. The memory must not be mapped at another
    /// address.
    pub fn show(&mut self, slab: &NewSlab, code: Code) -> Result<()> {
        let NewSlab { address, size, memory, device, .. } = *slab;
        let shown = match code {
            0 => place(&self.driver, memory, address, size, device).and_then(|_| {
                self.show_to_peers(address).inspect_err(|_| {
                    let _ = unmap(&self.driver, address, size, memory);
                })
            }),
            code => Err(code),
        };
        match (shown, self.memory.slabs.get_mut(&address)) {
            (Ok(()), Some(slab)) => slab.memory = memory,
            _ => drop(self.memory.remove(address)),
        }
        shown
    }

    /// Returns the context and the stream to overwrite memory of a device, or `None` if the session has no context
    /// there.
    pub fn filler(&self, device: u32) -> Option<Filler> {
        self.context_on(device).map(|(_, context)| Filler { context: context.handle, stream: context.internal })
    }

    /// Lets helpers overwrite the memory that an ending session still has. Shared memory is left out.
    pub fn begin_overwriting(&mut self) {
        let slabs = self.memory.slabs.iter().filter(|(_, slab)| slab.memory != 0 && slab.shared.is_none());
        let slabs: Vec<_> = slabs.map(|(at, slab)| (slab.device, *at, slab.size, self.filler(slab.device))).collect();
        let overwritten = Arc::clone(&self.memory.overwritten);
        let job = move |driver: &Driver| {
            for (device, at, size, filler) in slabs {
                if !is_in(&overwritten, at) && scrub(driver, device, at, size, filler).is_ok() {
                    overwritten.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
                }
            }
        };
        self.helpers.start_in_order(job, |_: &mut Session, ()| ());
    }

    /// Waits until helpers have done their work at the end of the session, within the shared time limit. Returns
    /// whether they finished in time.
    fn wait_for_helpers(&mut self) -> bool {
        let (done, is_done) = channel();
        self.helpers.start_in_order(move |_| done.send(()), |_: &mut Session, _| ());
        self.memory.last_waits.spend(|most| is_done.recv_timeout(most)).is_ok()
    }

    /// Waits for the helpers. Returns whether the ending session has overwritten this slab.
    pub fn was_overwritten(&mut self, address: u64) -> bool {
        self.wait_for_helpers() && is_in(&self.memory.overwritten, address)
    }

    /// Overwrites all memory of the session, after the work that helpers already have. Reports to the appliance how
    /// much memory could not be overwritten.
    pub fn scrub_everything(&mut self) {
        self.overwrite_all_freed();
        self.begin_overwriting();
        let in_time = self.wait_for_helpers();
        let still = self.memory.unmapping.iter().map(|(_, size)| if in_time { 0 } else { *size });
        let own = self.memory.slabs.iter().filter(|(_, slab)| slab.memory != 0 && slab.shared.is_none());
        let own = own.filter(|(at, _)| !is_in(&self.memory.overwritten, **at)).map(|(_, slab)| slab.size);
        match still.chain(own).sum() {
            0 => {}
            size => self.requests.push(Request::Left { size }),
        }
    }
}

fn is_in(addresses: &Mutex<BTreeSet<u64>>, address: u64) -> bool {
    addresses.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
}
