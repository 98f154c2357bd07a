//! The order of the client's locks, in one place, and a lock that asserts it in debug builds.
//!
//! A thread that holds a lock of a [`Rank`] takes only locks of later ranks, so no two threads wait for each other's
//! locks. Other waits can still close a circle: the thread that reads takes locks too, so a lock that it takes must not be
//! held across a wait for an answer, and a host function takes [`Rank::Mirror`], so that lock must not be held across a
//! wait for the GPU. Both rules have exceptions that are faults (docs/limitations.md, "Waits under a lock").
//! Locks without a rank are plain `Mutex`es of two kinds. Those under which commands are sent (of an event, a module,
//! a graph, a context's limits) are taken before all ranked locks but [`Rank::Context`]. All others guard a few
//! fields for a moment, and no ranked lock is taken under them. `try_lock` may be called in any order: it does not
//! wait.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// The ranked locks, in the order in which a thread may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// How often a context is retained; held while the context is made or destroyed, with all that it has.
    Context,
    /// Reservations and mappings of virtual memory management.
    Space,
    /// The place of one allocation of virtual memory management.
    Allocation,
    /// The mirrors of the host's memory; held while they are compared, sent and fetched.
    Mirror,
    /// The allocations on one device; held while the worker maps and exports.
    DeviceMemory,
    /// An appliance's session; held while it is opened.
    Appliance,
    /// The reasons why devices reach each other; held while the worker is told.
    Reached,
    /// The ring of pieces for pageable memory; held during a copy through it.
    Ring,
    /// The stripes; held while they are opened.
    Stripes,
    /// The connection by which a worker gets memory; held while it is used.
    Channel,
    /// The sessions of the process; held while one of them is looked for.
    Sessions,
    /// The incoming bytes; held by the thread that reads.
    Receiver,
    /// The outgoing frames; held while they are sent.
    Outbox,
    /// The commands whose answers are to come.
    Pending,
}

/// A lock with a rank. A lock whose holder has panicked is taken as it is.
pub struct Ordered<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// The access to what an [`Ordered`] lock guards, until it is dropped.
pub struct Guard<'a, T> {
    inner: MutexGuard<'a, T>,
    held: Held,
}

impl<T> Ordered<T> {
    pub const fn new(rank: Rank, value: T) -> Ordered<T> {
        Ordered { rank, inner: Mutex::new(value) }
    }

    /// Waits for the lock. Panics in a debug build if the thread holds a lock that is taken later.
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
    /// Gives up the lock until `condvar` is notified.
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
    /// The ranks of the locks that the thread holds, in a debug build.
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// The entry of a held lock in its thread's list.
struct Held(Rank);

impl Held {
    fn assert_before(rank: Rank) {
        if cfg!(debug_assertions) {
            // A thread that is ending has no list any more.
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
