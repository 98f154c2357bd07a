//! Quota for memory outside the heap: memory that the program maps itself, memory of graphs, and memory that the driver
//! takes.

use super::state::{DeviceMemory, Held, Leaving, State};
use crate::Code;
use crate::devices::context::Live;
use crate::locks::{Wait, assert_may_wait};
use crate::session::Slot;
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::sync::Arc;

impl DeviceMemory {
    /// Takes `size` bytes of the share for memory outside the heap.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn take_quota(&self, live: &Live, size: u64) -> Result<(), Code> {
        self.take_quota_in(self.state.lock(), live, size).map(drop)
    }

    pub(super) fn take_quota_in<'a>(&'a self, mut state: Held<'a>, live: &Live, size: u64) -> Result<Held<'a>, Code> {
        state.collect();
        loop {
            if state.unused_grant() < size {
                state.fence_all()?;
            }
            match self.make_room(state, live, size) {
                Ok(mut enough) => {
                    enough.used_otherwise += size;
                    return Ok(enough);
                }
                Err(CUDA_ERROR_OUT_OF_MEMORY) => state = self.wait_for_freed(CUDA_ERROR_OUT_OF_MEMORY)?,
                Err(code) => return Err(code),
            }
        }
    }

    /// Returns quota to the heap, which may return it to the worker.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn put_back_quota(&self, live: &Live, size: u64) -> Result<(), Code> {
        let mut state = self.state.lock();
        state.used_otherwise -= size;
        self.settle(state, live, size)
    }

    /// Gives up the quota for memory that the program maps itself. From now on the lease is charged for it instead of
    /// this process.
    pub fn move_quota_to_lease(&self, size: u64) {
        let state = &mut *self.state.lock();
        state.used_otherwise -= size;
        state.granted -= size;
    }

    /// Takes quota, then calls `body` to allocate the memory. Returns the quota if `body` fails.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or those of `body`.
    pub fn with_quota<T>(&self, live: &Live, size: u64, body: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        if size > 0 {
            self.take_quota(live, size)?;
        }
        body().inspect_err(|_| {
            // A failed session has no quota to return.
            let _ = self.put_back_quota(live, size);
        })
    }

    /// Returns quota when `fence` is finished. `is_context` is set for the memory of a destroyed context.
    pub fn put_back_after(&self, live: &Live, bytes: u64, fence: Arc<Slot>, is_context: bool) {
        if bytes > 0 || is_context {
            let session = Arc::clone(&live.session);
            self.state.lock().leaving.push(Leaving { session, bytes, fence, is_context });
        }
    }

    /// Returns the memory of a context that is being destroyed, if it is more than the slack. Other processes of the
    /// share can then use it when the call that destroys the context returns.
    pub fn give_back_context(&self, live: &Live) -> Result<(), Code> {
        let state = self.state.lock();
        let freed: u64 = state.freed.iter().map(|freed| freed.bytes).sum();
        let much = freed + state.heap.idle() > self.slack;
        drop(state);
        if !much {
            return Ok(());
        }
        self.wait_for_contexts()?;
        let mut state = self.state.lock();
        state.collect();
        self.settle(state, live, 0)
    }

    /// Waits until the memory of destroyed contexts is free.
    pub(super) fn wait_for_contexts(&self) -> Result<(), Code> {
        assert_may_wait(Wait::Work);
        let state = self.state.lock();
        let contexts = state.leaving.iter().filter(|leaving| leaving.is_context);
        let fences: Vec<_> = contexts.map(|of| (Arc::clone(&of.session), Arc::clone(&of.fence))).collect();
        drop(state);
        for (session, fence) in fences {
            session.flush()?;
            session.wait(&fence)?;
        }
        Ok(())
    }
}

impl State {
    /// Returns the quota of memory that the driver has freed by now.
    pub fn collect_quota(&mut self) {
        let State { leaving, used_otherwise, .. } = self;
        leaving.retain(|leaving| {
            let finished = leaving.fence.is_finished();
            *used_otherwise -= if finished { leaving.bytes } else { 0 };
            !finished
        });
    }
}
