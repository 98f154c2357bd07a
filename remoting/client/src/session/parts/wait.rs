//! Waiting for answers. One waiting thread reads the connection, and delivers answers to the other waiting threads.

use crate::Code;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer: its code, and the bytes after the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub code: Code,
    pub tail: Vec<u8>,
}

impl Reply {
    /// Returns the answer if its code is 0.
    ///
    /// # Errors
    /// The code, if it is not 0.
    pub fn success(self) -> Result<Reply, Code> {
        if self.code == 0 { Ok(self) } else { Err(self.code) }
    }

    pub fn reader(&self) -> protocol::Reader<'_> {
        protocol::Reader::new(&self.tail)
    }

    /// Decodes the fields of the answer.
    ///
    /// # Errors
    /// `CUDA_ERROR_UNKNOWN`, if the bytes do not have this form.
    pub fn decode<T: protocol::Wire>(&self) -> Result<T, Code> {
        self.reader().get().map_err(|_| driverapi::errors::CUDA_ERROR_UNKNOWN)
    }
}

#[derive(Default)]
struct State {
    reply: Option<Reply>,
    lead: bool,
    /// Whether a thread sleeps on the condition. If not, a notification would waste a system call.
    asleep: bool,
}

/// A place for one answer. A thread waits for the answer, and the reader stores it once.
#[derive(Default)]
pub struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

impl Slot {
    pub fn new() -> Arc<Slot> {
        Arc::default()
    }

    pub fn finish(&self, reply: Reply) {
        let mut state = lock(&self.state);
        state.reply = Some(reply);
        if state.asleep {
            self.changed.notify_all();
        }
    }

    pub fn is_finished(&self) -> bool {
        lock(&self.state).reply.is_some()
    }

    pub fn reply(&self) -> Option<Reply> {
        lock(&self.state).reply.clone()
    }

    /// Asks the thread that waits for this slot to become the reader.
    fn ask_to_lead(&self) {
        lock(&self.state).lead = true;
        self.changed.notify_all();
    }

    fn wait_for_change(&self) {
        let mut state = lock(&self.state);
        state.asleep = true;
        while state.reply.is_none() && !state.lead {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.asleep, state.lead) = (false, false);
    }
}

#[derive(Default)]
struct Role {
    taken: bool,
    armed: bool,
    waiters: Vec<Arc<Slot>>,
}

/// The result of [`Lead::enter`].
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// The slot has its answer, or the session has failed.
    Over,
    /// The calling thread is now the reader, until it calls [`Lead::leave`].
    Read,
}

/// The role of the reader. At most one thread has it and reads the connection.
#[derive(Default)]
pub struct Lead {
    role: Mutex<Role>,
}

impl Lead {
    /// Blocks until the slot has its answer, `failed` returns true, or the calling thread is the reader. `disarm` stops
    /// the background reader from watching the socket.
    pub fn enter(&self, slot: &Arc<Slot>, failed: impl Fn() -> bool, disarm: impl Fn()) -> Turn {
        loop {
            {
                let mut role = lock(&self.role);
                if slot.is_finished() || failed() {
                    return Turn::Over;
                }
                if !role.taken {
                    role.taken = true;
                    if std::mem::take(&mut role.armed) {
                        disarm();
                    }
                    return Turn::Read;
                }
                role.waiters.push(Arc::clone(slot));
            }
            slot.wait_for_change();
        }
    }

    /// Makes the calling thread the reader if no other thread is. Never blocks. `disarm` is as for [`Lead::enter`].
    pub fn try_enter(&self, disarm: impl Fn()) -> bool {
        let mut role = lock(&self.role);
        if std::mem::replace(&mut role.taken, true) {
            return false;
        }
        if std::mem::take(&mut role.armed) {
            disarm();
        }
        true
    }

    /// Gives the role to a waiting thread. If there is none, `arm` lets the background reader watch the socket.
    pub fn leave(&self, arm: impl Fn()) {
        let mut role = lock(&self.role);
        role.taken = false;
        while let Some(next) = role.waiters.pop() {
            if !next.is_finished() {
                next.ask_to_lead();
                return;
            }
        }
        role.armed = true;
        arm();
    }

    /// Wakes all waiting threads, because the session has failed.
    pub fn wake_all(&self) {
        for waiter in lock(&self.role).waiters.drain(..) {
            waiter.ask_to_lead();
        }
    }
}
