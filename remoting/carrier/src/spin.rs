//! Busy waiting for the other end: a wake-up takes longer than a nearby answer.

use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// About the time that two threads need to wake each other.
pub const TO_WAKE: Duration = Duration::from_micros(50);
/// The number of consecutive failed waits after which only one wait of [`SELDOM`] is busy.
const MISSES: u32 = 8;
const SELDOM: u32 = 64;

#[derive(Debug, Default, Clone, Copy)]
enum Wait {
    #[default]
    NotBegun,
    Awake(Instant),
    Asleep,
}

/// The current wait, and the number of failed waits before it.
#[derive(Debug)]
pub struct Spin {
    /// The maximum duration of a busy wait.
    longest: Duration,
    wait: Wait,
    /// Consecutive waits that took longer than `longest`, busy or not.
    misses: u32,
}

impl Spin {
    pub fn new(longest: Duration) -> Spin {
        Spin { longest, wait: Wait::default(), misses: 0 }
    }

    /// Whether the thread should continue without sleep; starts a wait if there is none. Always false on a machine with
    /// one processor, where a busy wait would stop the other end.
    pub fn goes_on(&mut self) -> bool {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, usize::from));
        processors > 1 && self.goes_on_at(Instant::now())
    }

    fn goes_on_at(&mut self, now: Instant) -> bool {
        let awake = match self.wait {
            Wait::NotBegun => self.misses < MISSES || (self.misses + 1).is_multiple_of(SELDOM),
            Wait::Awake(until) if now < until => return true,
            Wait::Awake(_) | Wait::Asleep => false,
        };
        if awake {
            self.wait = Wait::Awake(now + self.longest);
        } else if !matches!(self.wait, Wait::Asleep) {
            self.misses += 1;
            self.wait = Wait::Asleep;
        }
        awake
    }

    /// Ends the wait because its event has arrived.
    pub fn came(&mut self) {
        if let Wait::Awake(_) = self.wait {
            self.misses = 0;
        }
        self.wait = Wait::NotBegun;
    }

    /// Restarts the wait after another event, because the expected event may follow soon.
    pub fn again(&mut self) {
        self.wait = Wait::NotBegun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(70);

    #[test]
    fn a_wait_goes_to_sleep_and_what_comes_in_time_is_waited_for_again() {
        let (mut spin, begun) = (Spin::new(LONGEST), Instant::now());
        assert!(spin.goes_on_at(begun));
        assert!(spin.goes_on_at(begun + LONGEST / 2));
        assert!(!spin.goes_on_at(begun + LONGEST));
        assert!(!spin.goes_on_at(begun + LONGEST), "it sleeps until something comes");
        spin.came();
        assert!(spin.goes_on_at(begun + 2 * LONGEST));
    }

    #[test]
    fn what_takes_longer_is_seldom_tried_until_something_comes_in_time() {
        let (mut spin, begun) = (Spin::new(LONGEST), Instant::now());
        let mut takes_long = || {
            let tried = spin.goes_on_at(begun);
            spin.goes_on_at(begun + LONGEST);
            spin.came();
            tried
        };
        assert_eq!((0..MISSES).filter(|_| takes_long()).count(), MISSES as usize);
        let later = (0..100 * SELDOM).filter(|_| takes_long()).count();
        assert!((99..=101).contains(&later), "{later}");
        while !spin.goes_on_at(begun) {
            spin.came();
        }
        spin.came();
        for _ in 0..MISSES {
            assert!(spin.goes_on_at(begun));
            spin.again();
        }
    }
}
