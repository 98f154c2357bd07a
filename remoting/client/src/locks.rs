//! The order of the client's locks, and a lock that asserts this order in debug builds.
//!
//! A thread that holds a lock of a [`Rank`] takes only locks of later ranks, so no two threads wait for each other's
//! locks. A deadlock through other waits is still possible. The reader takes locks, so a thread must not hold one of
//! these locks while it waits for an answer. Host functions take [`Rank::Mirror`], so a thread must not hold that lock
//! while it waits for the GPU. The known violations of both rules are faults (docs/limitations.md, "Waits under a
//! lock").
//!
//! Locks without a rank are plain `Mutex`es of two kinds. Those that are held while commands are sent (of an event, a
//! module, a graph, a context's limits), or while NVML asks an appliance, are taken before all ranked locks but
//! [`Rank::Context`]. All others protect a few fields for a moment, and no ranked lock is taken while they are held.
//! `try_lock` may be called in any order, because it does not wait.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// The ranked locks, in the order in which a thread may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The reference count of a context. Held while the context is created, or destroyed with all its objects.
    Context,
    /// The reservations and mappings of virtual memory management.
    Space,
    /// The location of one allocation of virtual memory management.
    Allocation,
    /// The mirrors of host memory. Held while they are compared, sent and fetched.
    Mirror,
    /// The allocations on one device. Held while the worker maps and exports memory.
    DeviceMemory,
    /// An appliance's session. Held while the session is opened.
    Appliance,
    /// The reasons for access between devices. Held while the worker is notified.
    Reached,
    /// The ring of pieces for pageable memory. Held during a copy through it.
    Ring,
    /// The stripes. Held while they are opened.
    Stripes,
    /// The connection for sharing memory with a worker. Held while it is used.
    Channel,
    /// The sessions of the process. Held while one of them is searched for.
    Sessions,
    /// The receive buffer. Held by the thread that reads.
    Receiver,
    /// The outgoing frames. Held while they are sent.
    Outbox,
    /// The commands that the worker has not answered yet.
    Pending,
}

/// A lock with a rank. If a thread panicked while it held the lock, other threads can still take it.
pub struct Ordered<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// The access to the data of an [`Ordered`] lock. Dropping it releases the lock.
pub struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    held: Held,
}

impl<T> Ordered<T> {
    pub const fn new(rank: Rank, value: T) -> Ordered<T> {
        Ordered { rank, inner: Mutex::new(value) }
    }

    /// Waits for the lock. Panics in a debug build if the thread holds a lock of the same or a later rank.
    pub fn lock(&self) -> Guard<'_, T> {
        Held::assert_before(self.rank);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { inner, held: Held::new(self.rank) }
    }

    /// Takes the lock if no other thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { inner, held: Held::new(self.rank) })
    }
}

impl<T> Guard<'_, T> {
    /// Releases the lock, waits until `condvar` is notified, and takes the lock again.
    pub fn wait(self, condvar: &Condvar) -> Self {
        let Guard { inner, held } = self;
        Guard { inner: condvar.wait(inner).unwrap_or_else(PoisonError::into_inner), held }
    }
}

impl<T> std::ops::Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> std::ops::DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

thread_local! {
    /// The ranks of the locks that the thread holds. Used in debug builds.
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// The entry of a held lock in its thread's list. Dropping it removes the entry.
struct Held(Rank);

impl Held {
    fn assert_before(rank: Rank) {
        if cfg!(debug_assertions) {
            // A thread that is ending may have no list any more.
            let last = HELD.try_with(|held| held.borrow().iter().max().copied()).ok().flatten();
            assert!(last < Some(rank), "the lock {rank:?} is taken while {last:?} is held: see `Rank` for the order");
        }
    }

    fn new(rank: Rank) -> Held {
        if cfg!(debug_assertions) {
            let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
        }
        Held(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(place) = held.iter().rposition(|rank| *rank == self.0) {
                    held.swap_remove(place);
                }
            });
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    static OUTER: Ordered<u8> = Ordered::new(Rank::Space, 0);
    static INNER: Ordered<u8> = Ordered::new(Rank::Outbox, 0);

    #[test]
    fn locks_are_taken_in_their_order_again_and_again() {
        for _ in 0..2 {
            let outer = OUTER.lock();
            let inner = INNER.lock();
            drop(outer);
            drop(inner);
        }
        let _inner = INNER.lock();
        assert!(OUTER.try_lock().is_some_and(|outer| *outer == 0), "`try_lock` waits for nothing");
    }

    #[test]
    fn the_other_order_is_an_error() {
        let taken = std::thread::spawn(|| {
            let _inner = INNER.lock();
            drop(OUTER.lock());
        });
        let why = taken.join().expect_err("the order is asserted");
        assert!(why.downcast_ref::<String>().is_some_and(|why| why.contains("Space") && why.contains("Outbox")));
    }
}
