//! Threads that make mirrors at the same time. What one thread has taken for its mirror, another one may lack.

use crate::session::lock;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Limits on the attempts of a thread while others make mirrors too, and on the wait for one of these.
const MOST_TURNS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Count {
    /// The threads that make a mirror now.
    now: usize,
    /// The attempts that have ended.
    ended: u64,
}

#[derive(Default)]
pub struct Makers {
    count: Mutex<Count>,
    ends: Condvar,
}

/// An attempt. Its drop ends it, also in a panic.
struct Attempt<'a>(&'a Makers);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut count = lock(&self.0.count);
        count.now -= 1;
        count.ended += 1;
        self.0.ends.notify_all();
    }
}

impl Makers {
    pub const fn new() -> Self {
        Makers { count: Mutex::new(Count { now: 0, ended: 0 }), ends: Condvar::new() }
    }

    /// Calls `attempt` until it returns true. An error counts only if `is_there` is false after it and no other thread
    /// made a mirror at the same time.
    ///
    /// # Errors
    /// That of the last attempt.
    pub fn make<E>(&self, is_there: impl Fn() -> bool, mut attempt: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
        let mut turns = 0;
        loop {
            let before = {
                let mut count = lock(&self.count);
                count.now += 1;
                count.ended
            };
            let running = Attempt(self);
            let outcome = attempt();
            drop(running);
            match outcome {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) if is_there() => return Ok(()),
                Err(problem) => {
                    let count = lock(&self.count);
                    let was_alone = count.now == 0 && count.ended == before + 1;
                    if was_alone || turns == MOST_TURNS {
                        return Err(problem);
                    }
                    turns += 1;
                    let ended = count.ended;
                    drop(self.ends.wait_timeout_while(count, PATIENCE, |count| count.now > 0 && count.ended == ended));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    #[test]
    fn who_lacks_what_others_hold_has_another_turn() {
        let (makers, room, made, meet) = (Makers::new(), AtomicUsize::new(1), AtomicUsize::new(0), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut is_first = true;
                    let outcome = makers.make(
                        || made.load(SeqCst) == 4,
                        || {
                            let took = room.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                            if std::mem::take(&mut is_first) {
                                meet.wait();
                            }
                            if took {
                                made.fetch_add(1, SeqCst);
                                room.fetch_add(1, SeqCst);
                            }
                            if took { Ok(true) } else { Err("no room") }
                        },
                    );
                    assert!(outcome.is_ok());
                });
            }
        });
        assert_eq!(made.load(SeqCst), 4);
    }

    #[test]
    fn an_error_of_a_thread_that_is_alone_counts_at_once() {
        let attempts = AtomicUsize::new(0);
        let fail = || {
            attempts.fetch_add(1, SeqCst);
            Err("no room")
        };
        assert!(Makers::new().make(|| false, fail).is_err());
        assert_eq!(attempts.load(SeqCst), 1);
    }

    #[test]
    fn an_error_does_not_count_if_another_thread_has_made_the_mirror() {
        assert!(Makers::new().make(|| true, || Err("no room")).is_ok());
    }
}
