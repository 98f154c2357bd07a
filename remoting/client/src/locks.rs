//! The order of the client's locks, and a lock that asserts this order in debug builds and with the feature
//! `lock-order` (`make test-lock-order`).
//!
//! Three rules prevent deadlocks:
//!
//! - A thread that holds a lock of a [`Rank`] takes only locks of later ranks.
//! - A thread that waits for an answer holds no lock that the reader takes ([`Wait::Answer`]).
//! - A thread that waits for the program's work on a GPU holds no lock that a host function takes before it runs
//!   ([`Wait::Work`]): the work may come after a host function.
//!
//! The assertions see one thread. A thread that waits for another one (`sys::aside`, while [`Rank::Appliance`] is held)
//! passes its locks on unseen. The asserted waits are those of a session; [`Rank::Space`] is still held across a wait
//! for work where memory of the host is unmapped, and [`Rank::Context`] where a context is destroyed. No host function
//! takes these two.
//!
//! Locks without a rank are plain `Mutex`es of two kinds. Some are held while commands are sent or a ranked lock is
//! taken: those of an event, a module, a library and its kernels, a graph, the textures, a context's limits and its
//! last copy (`CopyMark`). They are taken before all ranked locks but [`Rank::Context`]. All others protect a few
//! fields for a moment, and no ranked lock is taken while they are held; the tables of handles and a context's `live`
//! (`RwLock`) are such. `try_lock` may be called in any order, because it does not wait.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

/// The ranked locks, in the order in which a thread may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The reference count of a context. Held while a primary context is created, or destroyed with all its objects.
    Context,
    /// The reservations and mappings of virtual memory management.
    Space,
    /// The location of one allocation of virtual memory management.
    Allocation,
    /// The mirrors of host memory. Held while they are compared, sent and fetched. Host functions take it.
    Mirror,
    /// The allocations on one device. Held while the worker maps and exports memory.
    DeviceMemory,
    /// The contexts whose memory a context may access. Held while the access is given.
    Peers,
    /// The devices that may access a pool's memory. Held while the access is given.
    Readers,
    /// An appliance's session. Held while the session is opened.
    Appliance,
    /// The reasons for access between devices. Held while the worker is notified of the first and the last one.
    Reached,
    /// The ring of pieces for pageable memory. Held during a copy through it.
    Ring,
    /// The stripes. Held while they are opened.
    Stripes,
    /// The connection for sharing memory with a worker. Held while it is used.
    Channel,
    /// The sessions of the process. Held while one of them is searched for.
    Sessions,
    /// The receive buffer. Held by the thread that reads. It takes the locks of this and of all later ranks, and no
    /// other.
    Receiver,
    /// The outgoing frames. Held while they are sent.
    Outbox,
    /// The commands that the worker has not answered yet.
    Pending,
}

/// The event that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// An answer of the worker, which the reader brings.
    Answer,
    /// Work of the program on a GPU, which may come after a host function.
    Work,
}

/// Whether the rules are asserted.
const ASSERTED: bool = cfg!(any(debug_assertions, feature = "lock-order"));

/// Asserts that the thread may wait: that it holds no lock that what it waits for may need.
pub fn assert_may_wait(wait: Wait) {
    if ASSERTED {
        let needed = |rank: &Rank| match wait {
            Wait::Answer => *rank >= Rank::Receiver,
            Wait::Work => *rank == Rank::Mirror || *rank >= Rank::Receiver,
        };
        let held = Held::find(needed);
        assert!(held.is_none(), "a thread waits for {wait:?} while it holds the lock {held:?}: see `locks`");
    }
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

    /// Waits for the lock. Panics, where the order is asserted, if the thread holds a lock of the same or a later rank.
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
    /// The ranks of the locks that the thread holds. Used where the order is asserted.
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// The entry of a held lock in its thread's list. Dropping it removes the entry.
struct Held(Rank);

impl Held {
    /// Returns the last of the ranks that the thread holds and that `is_it` accepts.
    fn find(is_it: impl Fn(&Rank) -> bool) -> Option<Rank> {
        // A thread that is ending may have no list any more.
        HELD.try_with(|held| held.borrow().iter().filter(|rank| is_it(rank)).max().copied()).ok().flatten()
    }

    fn assert_before(rank: Rank) {
        if ASSERTED {
            let last = Held::find(|_| true);
            assert!(last < Some(rank), "the lock {rank:?} is taken while {last:?} is held: see `Rank` for the order");
        }
    }

    fn new(rank: Rank) -> Held {
        if ASSERTED {
            let _ = HELD.try_with(|held| held.borrow_mut().push(rank));
        }
        Held(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if ASSERTED {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(place) = held.iter().rposition(|rank| *rank == self.0) {
                    held.swap_remove(place);
                }
            });
        }
    }
}

#[cfg(all(test, any(debug_assertions, feature = "lock-order")))]
mod tests {
    use super::*;

    static OUTER: Ordered<u8> = Ordered::new(Rank::Mirror, 0);
    static INNER: Ordered<u8> = Ordered::new(Rank::Outbox, 0);

    /// Returns why a thread that does this panics.
    fn why(wrong: impl FnOnce() + Send + 'static) -> String {
        let why = std::thread::spawn(wrong).join().expect_err("the order is asserted");
        why.downcast_ref::<String>().expect("a text").clone()
    }

    #[test]
    fn locks_are_taken_in_their_order_again_and_again() {
        for _ in 0..2 {
            let outer = OUTER.lock();
            let inner = INNER.lock();
            drop(outer);
            drop(inner);
        }
        let inner = INNER.lock();
        assert!(OUTER.try_lock().is_some_and(|outer| *outer == 0), "`try_lock` waits for nothing");
        drop(inner);
        assert_may_wait(Wait::Work);
        let _outer = OUTER.lock();
        assert_may_wait(Wait::Answer);
    }

    #[test]
    fn the_other_order_is_an_error() {
        let why = why(|| {
            let _inner = INNER.lock();
            drop(OUTER.lock());
        });
        assert!(why.contains("Mirror") && why.contains("Outbox"), "{why}");
    }

    #[test]
    fn a_wait_under_a_lock_that_ends_it_is_an_error() {
        for (wait, lock, name) in [(Wait::Work, &OUTER, "Mirror"), (Wait::Answer, &INNER, "Outbox")] {
            let why = why(move || {
                let _held = lock.lock();
                assert_may_wait(wait);
            });
            assert!(why.contains(name), "{why}");
        }
    }
}
