//! Large memory that a process gave back and that lives on: for a moment it is offered to another process of its lease, as
//! what a session leaves is (`heirs`). The driver does not have it in between. It is overwritten before, unless a kernel
//! still runs, behind which that might wait; then by who gets it, or, if nobody wants it, where nothing of the tenant's
//! reaches it.

use crate::driver::Result;
use crate::memory::heirs::SLACK;
use crate::memory::overwriting::scrub;
use crate::memory::slabs::Slab;
use crate::session::commands::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Smaller memory is overwritten in less time than anybody notices.
const LEAST: u64 = 64 << 20;
/// So long it is kept for who asks: two processes that take turns have told each other by then.
const OFFER: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A helper overwrites it and takes it away from the tenant.
    Unmapping,
    OpenUntil(Instant),
    /// The appliance has its descriptor; whether the heir has it is not known yet.
    Handed,
}

#[derive(Debug)]
pub struct Freed {
    device: u32,
    size: u64,
    memory: u64,
    /// A helper has overwritten it.
    zeroed: Arc<AtomicBool>,
    stage: Stage,
}

impl Session {
    /// Is this memory worth an offer, and the session in no state in which its memory must be known?
    pub fn may_offer(&self, slab: &Slab) -> bool {
        slab.size >= LEAST && slab.shared.is_none() && !self.hold.holds() && !self.hold.sends_ahead
    }

    /// Overwrites memory and takes it away from `address`, and offers it.
    pub fn offer_freed(&mut self, slab: &Slab, address: u64) {
        let Slab { size, device, memory, .. } = *slab;
        let zeroed = Arc::new(AtomicBool::new(false));
        self.memory.freed.push(Freed { device, size, memory, zeroed: Arc::clone(&zeroed), stage: Stage::Unmapping });
        let filler = if self.is_quiet() { self.filler(device) } else { None };
        let (launches, is_zeroed) = (self.stats.launches, Arc::clone(&zeroed));
        self.helpers.start_in_order(
            move |driver| {
                let done = filler.is_some() && scrub(driver, device, address, size, filler).is_ok();
                zeroed.store(done, Ordering::Release);
                driver.memory_unmap(address, size)
            },
            move |session: &mut Session, unmapped: Result<()>| {
                session.memory.unmapping.retain(|range| *range != (address, size));
                if let Err(code) = unmapped {
                    session.late(code);
                }
                // A kernel that was launched meanwhile may have written there before it was unmapped.
                if session.stats.launches != launches {
                    is_zeroed.store(false, Ordering::Release);
                }
                // Unless it is about to be overwritten.
                let at = session.memory.freed.iter().position(|each| each.memory == memory && each.is_unmapping());
                match at {
                    Some(at) if unmapped.is_err() => session.overwrite_freed(at),
                    Some(at) => session.memory.freed[at].stage = Stage::OpenUntil(Instant::now() + OFFER),
                    None => {}
                }
                session.serve_wanted();
                session.return_memory();
            },
        );
    }

    /// Will there be an offer on this device?
    pub fn has_freed(&self, device: u32) -> bool {
        self.memory.freed.iter().any(|each| each.device == device)
    }

    /// Is something handed on of which it is not known whose it is?
    pub fn is_handing_freed_on(&self) -> bool {
        self.memory.freed.iter().any(|each| each.stage == Stage::Handed)
    }

    /// Another process of the lease waits for so much of what was returned.
    pub fn hand_freed_on(&mut self, device: u32, least: u64) {
        self.memory.wanted = Some((device, least));
        self.serve_wanted();
    }

    fn serve_wanted(&mut self) {
        let Some((device, least)) = self.memory.wanted else { return };
        if self.memory.freed.iter().any(|each| each.device == device && each.is_unmapping()) {
            return;
        }
        self.memory.wanted = None;
        let returned: u64 = self.memory.returning.iter().filter(|(of, _)| *of == device).map(|(_, size)| size).sum();
        let fits = |each: &&mut Freed| {
            each.device == device
                && matches!(each.stage, Stage::OpenUntil(_))
                && (least..=least.saturating_add(SLACK).min(returned)).contains(&each.size)
        };
        let found = self.memory.freed.iter_mut().filter(fits).min_by_key(|each| each.size);
        let exported = found.and_then(|each| Some((self.driver.memory_export(each.memory).ok()?, each)));
        let Some((file, each)) = exported else {
            // Who waits needs something else, which is there the sooner.
            self.overwrite_all_freed();
            return;
        };
        each.stage = Stage::Handed;
        let (size, zeroed) = (each.size, each.zeroed.load(Ordering::Acquire));
        self.requests.hand_on(device, size, zeroed, file);
    }

    /// The appliance has passed on what was freed, or there is nobody any more who wants it. Returns whether anything was
    /// handed on.
    pub fn freed_handed_on(&mut self, taken: bool) -> bool {
        let Some(at) = self.memory.freed.iter().position(|each| each.stage == Stage::Handed) else { return false };
        if !taken {
            self.overwrite_freed(at);
            return true;
        }
        let Freed { device, size, memory, .. } = self.memory.freed.swap_remove(at);
        // The appliance has counted it already.
        let mut left = size;
        for (_, returning) in self.memory.returning.iter_mut().filter(|(of, _)| *of == device) {
            let part = left.min(*returning);
            *returning -= part;
            left -= part;
        }
        self.memory.returning.retain(|(_, size)| *size > 0);
        self.helpers.start_in_order(
            move |driver| driver.memory_release(memory),
            |session: &mut Session, released| {
                if let Err(code) = released {
                    session.late(code);
                }
            },
        );
        self.return_memory();
        true
    }

    /// Releases what nobody asked for in time. Returns when to look again.
    pub fn look_after_freed(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let over = |each: &Freed| matches!(each.stage, Stage::OpenUntil(until) if until <= now);
        while let Some(at) = self.memory.freed.iter().position(over) {
            self.overwrite_freed(at);
        }
        let open = self.memory.freed.iter().filter_map(|each| match each.stage {
            Stage::OpenUntil(until) => Some(until.saturating_duration_since(now)),
            _ => None,
        });
        open.min()
    }

    /// Somebody needs the memory, or nothing may be on offer. Helpers do it behind what they are unmapping.
    pub fn overwrite_all_freed(&mut self) {
        while let Some(at) = self.memory.freed.iter().position(|each| each.stage != Stage::Handed) {
            self.overwrite_freed(at);
        }
    }

    fn overwrite_freed(&mut self, at: usize) {
        let Freed { device, size, memory, zeroed, .. } = self.memory.freed.swap_remove(at);
        let hidden = self.memory.hide(&self.driver, size);
        let range = hidden.map(|hidden| (hidden, size)).ok();
        self.memory.unmapping.extend(range);
        self.overwrite_hidden((device, size, memory), hidden, zeroed, move |session| {
            session.memory.unmapping.retain(|each| Some(*each) != range);
            session.return_memory();
        });
    }
}

impl Freed {
    fn is_unmapping(&self) -> bool {
        self.stage == Stage::Unmapping
    }
}
