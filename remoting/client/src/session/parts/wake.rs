//! A signal that wakes the background thread that sends.

use super::wait::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// A signal for the background thread. The reader may send it, because its lock is held only briefly.
#[derive(Default)]
pub struct Wake {
    due: Mutex<bool>,
    changed: Condvar,
}

impl Wake {
    pub fn wake(&self) {
        *lock(&self.due) = true;
        self.changed.notify_one();
    }

    pub fn wait(&self) {
        let due = self.changed.wait_while(lock(&self.due), |due| !*due);
        *due.unwrap_or_else(PoisonError::into_inner) = false;
    }
}
