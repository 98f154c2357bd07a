//! Releases memory that processes of a lease share. The last owner overwrites the memory, and only the appliance knows
//! which process that is.

use crate::driver::Result;
use crate::memory::mapping::{place, unmap};
use crate::memory::overwriting::scrub;
use crate::memory::slabs::Slab;
use crate::packets::{Request, Token};
use crate::session::commands::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Session {
    /// Unmaps shared memory from `address`, and asks the appliance whether another process still has it.
    pub fn part_with(&mut self, token: Token, slab: Slab, address: u64) {
        let size = slab.size;
        self.helpers.start_in_order(
            move |driver| driver.memory_unmap(address, size),
            move |session: &mut Session, unmapped| {
                session.memory.unmapping.retain(|range| *range != (address, size));
                if let Err(code) = unmapped {
                    session.late(code);
                }
                session.memory.parting.insert(token, slab);
                session.requests.push(Request::Release { token });
                session.return_memory();
            },
        );
    }

    /// Handles the appliance's answer. `last` is true if this session was the last owner of the memory that it has
    /// released.
    pub fn released(&mut self, token: Token, last: bool) {
        if let Some(slab) = self.memory.parting.remove(&token) {
            if last { self.overwrite_shared(token, &slab) } else { self.forget_shared(&slab) }
        } else if self.memory.parting_at_end.remove(&token) {
            // The session is the last owner, so it overwrites this memory together with its own.
            if let Some(slab) = self.memory.slabs.values_mut().find(|slab| last && slab.shared == Some(token)) {
                slab.shared = None;
            }
        } else if last {
            // The export or import of this memory was abandoned, so there is nothing to overwrite here.
            self.requests.push(Request::Freed { token });
        }
    }

    fn forget_shared(&mut self, slab: &Slab) {
        let memory = slab.memory;
        self.helpers.start_in_order(
            move |driver| driver.memory_release(memory),
            |session: &mut Session, released| {
                if let Err(code) = released {
                    session.late(code);
                }
            },
        );
    }

    fn overwrite_shared(&mut self, token: Token, slab: &Slab) {
        let Slab { size, device, memory, .. } = *slab;
        let hidden = self.memory.hide(&self.driver, size);
        self.overwrite_hidden((device, size, memory), hidden, Arc::default(), move |session| {
            session.requests.push(Request::Freed { token });
        });
    }

    /// Overwrites memory that is not mapped, at a hidden address, and releases it. If `zeroed` is already set, only
    /// releases it. Then calls `then`.
    pub fn overwrite_hidden(
        &mut self,
        (device, size, memory): (u32, u64, u64),
        hidden: Result<u64>,
        zeroed: Arc<AtomicBool>,
        then: impl FnOnce(&mut Session) + Send + 'static,
    ) {
        let filler = self.filler(device);
        self.helpers.start_in_order(
            move |driver| {
                if zeroed.load(Ordering::Acquire) {
                    return (driver.memory_release(memory).is_ok(), hidden);
                }
                let shown = driver.device(device as i32).and_then(|ordinal| {
                    let hidden = hidden.inspect_err(|_| {
                        let _ = driver.memory_release(memory);
                    })?;
                    place(driver, memory, hidden, size, ordinal)?;
                    Ok(hidden)
                });
                let scrubbed = shown.is_ok_and(|hidden| {
                    let scrubbed = scrub(driver, device, hidden, size, filler).is_ok();
                    unmap(driver, hidden, size, memory).is_ok() && scrubbed
                });
                (scrubbed, shown)
            },
            move |session: &mut Session, (scrubbed, shown)| {
                if let Ok(hidden) = shown {
                    session.memory.hidden.retain(|range| *range != (hidden, size));
                }
                if !scrubbed {
                    session.requests.push(Request::Left { size });
                }
                then(session);
            },
        );
    }

    /// Releases all shared memory at the end of the session, and asks the appliance which processes still have it.
    pub fn part_with_everything(&mut self) {
        let shared = self.memory.slabs.values().filter(|slab| slab.memory != 0).filter_map(|slab| slab.shared);
        self.memory.parting_at_end = shared.collect();
        for token in &self.memory.parting_at_end {
            self.requests.push(Request::Release { token: *token });
        }
    }

    /// Whether the appliance has yet to answer about shared memory.
    pub fn is_parting(&self) -> bool {
        !(self.memory.parting.is_empty() && self.memory.parting_at_end.is_empty())
    }
}
