//! Fences in streams. They limit how much uncompleted work a stream can have.

use super::parts::queues::{MOST, Room};
use super::sessions::mint;
use super::{Session, Slot, lock};
use crate::Code;
use crate::locks::{Wait, assert_may_wait};
use protocol::StreamFence;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Session {
    /// Returns a new token for a fence, and the slot that is finished when the worker answers with this token
    /// (`Fenced`).
    pub fn new_fence(&self) -> (u64, Arc<Slot>) {
        let (token, slot) = (mint(), Slot::new());
        lock(&self.fences).insert(token, Arc::clone(&slot));
        (token, slot)
    }

    /// Sends a fence after all commands that the stream has.
    pub(super) fn fence_queue(&self, stream: u64) -> Result<(), Code> {
        let (token, slot) = self.new_fence();
        self.outbox.lock().queues.fence(stream, slot);
        self.post(stream, &StreamFence { token }).map(drop)
    }

    /// Waits until the stream's queue has room for another command.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn wait_for_queue(&self, stream: u64) -> Result<(), Code> {
        // The usual case: all streams together have fewer commands than one stream may have.
        while self.queued.load(Relaxed) >= MOST {
            let room = {
                let mut outbox = self.outbox.lock();
                let room = outbox.queues.room(stream);
                self.queued.store(outbox.queues.together(), Relaxed);
                room
            };
            match room {
                Room::Enough => break,
                Room::AfterFencing(streams) => streams.into_iter().try_for_each(|each| self.fence_queue(each))?,
                Room::After(fence) => {
                    assert_may_wait(Wait::Work);
                    self.flush()?;
                    self.wait(&fence)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the queue of a destroyed stream, so that no thread waits for this queue.
    pub fn forget_queue(&self, stream: u64) {
        let queues = &mut self.outbox.lock().queues;
        queues.forget(stream);
        self.queued.store(queues.together(), Relaxed);
    }
}
