//! Quota for what is not the heap's: memory that the program places, that graphs have, and that the driver takes.

use super::{DeviceMemory, State};
use crate::Code;
use crate::context::Live;
use crate::session::{Session, Slot, lock};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::sync::Arc;

/// Memory that the device's driver gives back, and the fence after which it has.
pub struct Leaving {
    pub session: Arc<Session>,
    bytes: u64,
    pub fence: Arc<Slot>,
    /// A program that destroyed a context sees its memory free.
    is_context: bool,
}

impl DeviceMemory {
    /// Quota for memory that the program places itself.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn take_quota(&self, live: &Live, size: u64) -> Result<(), Code> {
        self.take_quota_in(&mut lock(&self.state), live, size)
    }

    pub(super) fn take_quota_in(&self, state: &mut State, live: &Live, size: u64) -> Result<(), Code> {
        state.collect();
        if state.unused_grant() < size {
            state.fence_all()?;
        }
        loop {
            match self.make_room(state, live, size) {
                Err(CUDA_ERROR_OUT_OF_MEMORY) if state.wait_for_freed()? => {}
                Err(code) => return Err(code),
                Ok(()) => break,
            }
        }
        state.used_otherwise += size;
        Ok(())
    }

    /// # Errors
    /// The session's sticky error.
    pub fn put_back_quota(&self, live: &Live, size: u64) -> Result<(), Code> {
        let state = &mut *lock(&self.state);
        state.used_otherwise -= size;
        self.settle(state, live)
    }

    /// The lease, no longer this process, is charged for memory that the program placed itself.
    pub fn move_quota_to_lease(&self, size: u64) {
        let state = &mut *lock(&self.state);
        state.used_otherwise -= size;
        state.granted -= size;
    }

    /// Quota for what `body` makes, unless that fails.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or those of `body`.
    pub fn with_quota<T>(&self, live: &Live, size: u64, body: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        if size > 0 {
            self.take_quota(live, size)?;
        }
        body().inspect_err(|_| {
            // A session that has failed keeps nothing.
            let _ = self.put_back_quota(live, size);
        })
    }

    /// Puts quota back when a fence is passed.
    pub fn put_back_after(&self, live: &Live, bytes: u64, fence: Arc<Slot>, is_context: bool) {
        if bytes > 0 || is_context {
            let session = Arc::clone(&live.session);
            lock(&self.state).leaving.push(Leaving { session, bytes, fence, is_context });
        }
    }
}

impl State {
    /// Takes back what the driver is known to have given back.
    pub fn collect_quota(&mut self) {
        let State { leaving, used_otherwise, .. } = self;
        leaving.retain(|leaving| {
            let finished = leaving.fence.is_finished();
            *used_otherwise -= if finished { leaving.bytes } else { 0 };
            !finished
        });
    }

    /// Waits for what destroyed contexts give back.
    pub fn wait_for_contexts(&self) -> Result<(), Code> {
        for leaving in self.leaving.iter().filter(|leaving| leaving.is_context) {
            leaving.session.flush()?;
            leaving.session.wait(&leaving.fence)?;
        }
        Ok(())
    }
}
