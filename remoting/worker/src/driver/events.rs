//! The driver's events. Each record of a client's event uses a driver event from the context's pool.

use super::{Driver, Handle, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// The driver events of a context that are not in use, without and with timing.
#[derive(Debug, Clone)]
pub struct EventPool {
    context: Handle,
    free: Rc<RefCell<[Vec<Handle>; 2]>>,
}

pub const DISABLE_TIMING: u32 = 2;

impl EventPool {
    pub fn new(context: Handle) -> EventPool {
        EventPool { context, free: Rc::default() }
    }

    /// Takes a driver event for a record, and creates one if the pool is empty. The context must be current.
    pub fn take(&self, driver: &Driver, timing: bool) -> Result<Rc<RealEvent>> {
        let free = self.free.borrow_mut()[usize::from(timing)].pop();
        let handle = match free {
            Some(handle) => handle,
            None => driver.event_create(if timing { 0 } else { DISABLE_TIMING })?,
        };
        Ok(Rc::new(RealEvent { handle, timing, pool: self.clone() }))
    }
}

/// A driver event that stands for one record of a client's event. Each record has its own, so that a wait for an old
/// record never waits for a newer one.
#[derive(Debug)]
pub struct RealEvent {
    pub handle: Handle,
    timing: bool,
    pool: EventPool,
}

impl RealEvent {
    pub fn context(&self) -> Handle {
        self.pool.context
    }
}

impl Drop for RealEvent {
    fn drop(&mut self) {
        self.pool.free.borrow_mut()[usize::from(self.timing)].push(self.handle);
    }
}
