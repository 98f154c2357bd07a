//! How many OS threads may help with launches at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A budget of helper threads shared by all launches. The thread that calls `launch` always runs blocks itself and needs
/// none of it, so an exhausted budget slows a launch down but never stops it.
pub struct ThreadPool {
    free: AtomicUsize,
}

impl ThreadPool {
    /// A pool of `threads` helpers.
    pub fn new(threads: usize) -> Self {
        Self { free: AtomicUsize::new(threads) }
    }

    /// Takes up to `wanted` helpers; they come back when the permit is dropped.
    pub(crate) fn take(&self, wanted: usize) -> Permit<'_> {
        let mut taken = 0;
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = free.min(wanted);
            Some(free - taken)
        });
        Permit { pool: self, count: taken }
    }
}

/// Helpers on loan.
pub(crate) struct Permit<'a> {
    pool: &'a ThreadPool,
    pub(crate) count: usize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.pool.free.fetch_add(self.count, Ordering::AcqRel);
    }
}
