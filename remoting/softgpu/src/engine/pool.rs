//! The limit of OS threads that help with launches at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A budget of helper threads that all launches share. The thread that calls `launch` always runs blocks itself and
/// needs no budget. An exhausted budget therefore slows a launch but does not stop it.
pub struct ThreadPool {
    free: AtomicUsize,
}

impl ThreadPool {
    /// Creates a pool of `threads` helpers.
    pub fn new(threads: usize) -> Self {
        Self { free: AtomicUsize::new(threads) }
    }

    /// Takes up to `wanted` helpers. Dropping the permit returns them.
    pub(crate) fn take(&self, wanted: usize) -> Permit<'_> {
        let mut taken = 0;
        let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| {
            taken = free.min(wanted);
            Some(free - taken)
        });
        Permit { pool: self, count: taken }
    }
}

/// A number of helpers that were taken from a pool.
pub(crate) struct Permit<'a> {
    pool: &'a ThreadPool,
    pub(crate) count: usize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.pool.free.fetch_add(self.count, Ordering::AcqRel);
    }
}
