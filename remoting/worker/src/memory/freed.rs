//! Large memory that the program of a running session has freed. For a short time it is offered to another process of
//! the lease, like the memory of an ending session (`heirs`), and the driver does not get it back. Usually it is
//! overwritten before the offer. If a kernel still runs, that would take too long, and then the next owner overwrites
//! the memory. If no process takes it, this worker overwrites it at a hidden address that the tenant's kernels do not
//! know.

use crate::driver::Result;
use crate::memory::offers::{Freed, SLACK, Stage};
use crate::memory::overwriting::scrub;
use crate::memory::slabs::Slab;
use crate::session::commands::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The smallest memory in bytes that is offered. Less memory is overwritten in no noticeable time.
const LEAST: u64 = 64 << 20;
/// The duration of an offer. It is long enough for two processes that take turns to notify each other.
const OFFER: Duration = Duration::from_millis(100);

impl Session {
    /// Whether to offer the memory of a slab: it must be large and not shared. A session that is held or sends its
    /// memory ahead offers none, because all of its memory must be known.
    pub fn may_offer(&self, slab: &Slab) -> bool {
        slab.size >= LEAST && slab.shared.is_none() && !self.hold.holds() && !self.hold.sends_ahead
    }

    /// Overwrites memory if no kernel runs, unmaps it from `address`, and offers it.
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
                // A kernel that was launched meanwhile may have written to the memory before it was unmapped.
                if session.stats.launches != launches {
                    is_zeroed.store(false, Ordering::Release);
                }
                // The entry is missing if the memory is already being overwritten.
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

    /// Whether freed memory of this device is being unmapped, is offered, or was handed on without an answer yet.
    pub fn has_freed(&self, device: u32) -> bool {
        self.memory.freed.iter().any(|each| each.device == device)
    }

    /// Whether the appliance has yet to answer who owns freed memory that was handed on.
    pub fn is_handing_freed_on(&self) -> bool {
        self.memory.freed.iter().any(|each| each.stage == Stage::Handed)
    }

    /// Hands freed memory on to another process of the lease, which waits for at least `least` bytes. This happens when
    /// no freed memory of the device is being unmapped any more. If no freed memory fits, all offers end.
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
            // No freed memory fits. The waiting process gets other memory sooner if this session returns its freed
            // memory.
            self.overwrite_all_freed();
            return;
        };
        each.stage = Stage::Handed;
        let (size, zeroed) = (each.size, each.zeroed.load(Ordering::Acquire));
        self.requests.hand_on(device, size, zeroed, file);
    }

    /// Handles the appliance's answer to freed memory that was handed on. `taken` is false if no process wants it any
    /// more. Returns false if no freed memory was handed on.
    pub fn freed_handed_on(&mut self, taken: bool) -> bool {
        let Some(at) = self.memory.freed.iter().position(|each| each.stage == Stage::Handed) else { return false };
        if !taken {
            self.overwrite_freed(at);
            return true;
        }
        let Freed { device, size, memory, .. } = self.memory.freed.swap_remove(at);
        // The appliance has already accounted for this memory.
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

    /// Ends offers that no process has accepted in time. Returns the time until the next check, or `None`.
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

    /// Ends all offers, because memory is needed or must no longer be offered. Memory that was handed on is excepted.
    /// Helpers overwrite the memory after the work that they already have.
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
