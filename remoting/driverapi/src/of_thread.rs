//! Per-thread state that exists until the thread's end.
//!
//! Programs call CUDA in destructors of thread-local and static objects, of `pthread_key`s, and in `atexit` handlers. A
//! normal thread-local value may already be destroyed at that time. This state has no destructor: when another thread
//! first needs state, it collects the states of ended threads.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

/// A thread's pointer to its own state. Create it by `thread_local!` with `const { Cell::new(None) }`.
pub type Own<T> = Cell<Option<NonNull<RefCell<T>>>>;

/// The states of all threads.
pub struct OfThreads<T: 'static> {
    all: Mutex<All<T>>,
    /// A callback that gets the state of an ended thread. Another thread calls it, without a lock.
    ended: fn(T),
}

struct All<T: 'static> {
    states: Vec<State<T>>,
    /// The number of states at which the next search for ended threads starts.
    crowded: usize,
}

struct State<T: 'static> {
    process: libc::pid_t,
    thread: libc::pid_t,
    value: NonNull<RefCell<T>>,
}

/// SAFETY: only one thread uses the value at a time: its own thread, and after that thread's end the one that removes
/// the state.
unsafe impl<T: Send> Send for State<T> {}

const FEW: usize = 16;

impl<T: Default + Send> OfThreads<T> {
    pub const fn new(ended: fn(T)) -> Self {
        OfThreads { all: Mutex::new(All { states: Vec::new(), crowded: FEW }), ended }
    }

    /// Calls `act` with the calling thread's state. `act` must not call `with`.
    pub fn with<R>(&'static self, own: &'static LocalKey<Own<T>>, act: impl FnOnce(&mut T) -> R) -> R {
        let value = own.get().unwrap_or_else(|| {
            let value = self.add();
            own.set(Some(value));
            value
        });
        // SAFETY: only this thread has the address, and the state is not removed before the thread ends.
        act(&mut unsafe { value.as_ref() }.borrow_mut())
    }

    fn add(&self) -> NonNull<RefCell<T>> {
        let value = NonNull::from(Box::leak(Box::<RefCell<T>>::default()));
        // SAFETY: no preconditions. glibc 2.17 has no wrapper for the system call gettid.
        let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as libc::pid_t) };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // A state with this thread's number belongs to an earlier, ended thread.
        let mut left: Vec<_> = all.states.extract_if(.., |state| state.is_of(process, thread)).collect();
        if all.states.len() >= all.crowded {
            left.extend(
                all.states.extract_if(.., |state| state.process == process && has_ended(process, state.thread)),
            );
            all.crowded = FEW.max(2 * all.states.len());
        }
        all.states.push(State { process, thread, value });
        drop(all);
        for state in left {
            // SAFETY: `add` created the state, it is removed from the list, and its thread has ended.
            (self.ended)(unsafe { Box::from_raw(state.value.as_ptr()) }.into_inner());
        }
        value
    }
}

impl<T> State<T> {
    /// Whether a state belongs to a thread of a process. The process is compared because a forked child inherits its
    /// parent's list.
    fn is_of(&self, process: libc::pid_t, thread: libc::pid_t) -> bool {
        (self.process, self.thread) == (process, thread)
    }
}

fn has_ended(process: libc::pid_t, thread: libc::pid_t) -> bool {
    // SAFETY: signal 0 only checks whether the thread exists.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    sent != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    static ENDED: AtomicUsize = AtomicUsize::new(0);
    static STATES: OfThreads<Vec<usize>> = OfThreads::new(|state| {
        ENDED.fetch_add(state.len(), Ordering::Relaxed);
    });

    thread_local! {
        static OWN: Own<Vec<usize>> = const { Cell::new(None) };
    }

    struct AtEnd;

    impl Drop for AtEnd {
        fn drop(&mut self) {
            assert_eq!(STATES.with(&OWN, |state| state.clone()), [7]);
        }
    }

    thread_local! {
        static MADE_BEFORE: AtEnd = const { AtEnd };
    }

    #[test]
    fn state_is_there_in_destructors_and_is_given_back_later() {
        const THREADS: usize = 200;
        for _ in 0..THREADS {
            thread::spawn(|| {
                MADE_BEFORE.with(|_| ());
                STATES.with(&OWN, |state| state.push(7));
            })
            .join()
            .unwrap();
        }
        let kept = THREADS - ENDED.load(Ordering::Relaxed);
        assert!(kept <= 2 * FEW, "{kept} states of ended threads are kept");
    }
}
