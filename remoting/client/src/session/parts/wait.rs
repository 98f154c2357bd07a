//! Waiting for something that arrives on the connection: the waiting thread reads, and delivers what belongs to others.

use crate::Code;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The code and tail of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub code: Code,
    pub tail: Vec<u8>,
}

impl Reply {
    /// # Errors
    /// The code, if it is not 0.
    pub fn success(self) -> Result<Reply, Code> {
        if self.code == 0 { Ok(self) } else { Err(self.code) }
    }

    pub fn reader(&self) -> protocol::Reader<'_> {
        protocol::Reader::new(&self.tail)
    }

    /// Reads the fields of the answer; an answer of another form is an unknown error.
    ///
    /// # Errors
    /// `CUDA_ERROR_UNKNOWN`.
    pub fn decode<T: protocol::Wire>(&self) -> Result<T, Code> {
        self.reader().get().map_err(|_| driverapi::errors::CUDA_ERROR_UNKNOWN)
    }
}

#[derive(Default)]
struct State {
    reply: Option<Reply>,
    lead: bool,
    /// Whether a thread sleeps; a notification without one would still cost a system call.
    asleep: bool,
}

/// The place where one awaited answer is delivered, once.
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

    /// Asks the waiting thread to become the reader.
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

/// The next step of a caller of [`Lead::enter`].
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// The slot is finished, or the session has failed.
    Over,
    /// This thread is the reader now, until [`Lead::leave`].
    Read,
}

/// The thread that reads the connection.
#[derive(Default)]
pub struct Lead {
    role: Mutex<Role>,
}

impl Lead {
    /// Blocks until the slot is finished (or `failed`), or this thread is the reader. `disarm` takes the socket away
    /// from the background reader.
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

    /// Becomes the reader only if no other thread reads; `disarm` as for [`Lead::enter`].
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

    /// Hands the socket to a thread that waits, or else to the background reader by `arm`.
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

    /// Wakes all waiting threads to look again: the session has failed.
    pub fn wake_all(&self) {
        for waiter in lock(&self.role).waiters.drain(..) {
            waiter.ask_to_lead();
        }
    }
}
