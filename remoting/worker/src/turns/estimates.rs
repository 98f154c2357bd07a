//! Estimated run times of kernels: a moving average for each kernel, computed from batches of launches. Pure.

use crate::driver::Handle;
use std::collections::HashMap;
use std::time::Duration;

/// The estimate for a kernel that has never run. It is high, so that little of such work is queued.
const UNKNOWN: Duration = Duration::from_micros(250);
const SHORTEST: Duration = Duration::from_nanos(500);
const LONGEST: Duration = Duration::from_secs(60);
/// The weight of the previous estimate, relative to the new measurement.
const KEPT: f64 = 0.9;
/// Limit on the known kernels. A program that loads and unloads modules in an endless loop always has new ones.
const MOST: usize = 1 << 14;

/// Decaying sums of one kernel. An average of quotients would be wrong, because completions are found in groups: one
/// batch seems to take long, and the next seems to take no time.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    seconds: f64,
    count: f64,
}

#[derive(Debug, Default)]
pub struct Estimates {
    /// The sums by function. An executable graph counts as one function.
    of: HashMap<Handle, Seen>,
}

impl Estimates {
    pub fn of(&self, work: Handle) -> Duration {
        let average = |seen: &Seen| Duration::try_from_secs_f64(seen.seconds / seen.count).ok();
        self.of.get(&work).and_then(average).map_or(UNKNOWN, |time| time.clamp(SHORTEST, LONGEST))
    }

    /// Updates the estimates from a batch that took `took` in total. Before, each launch was expected to take the time
    /// that `of` returns.
    pub fn learn(&mut self, batch: &[(Handle, u32)], took: Duration) {
        let before: Vec<Duration> = batch.iter().map(|(work, _)| self.of(*work)).collect();
        let expected: f64 = before.iter().zip(batch).map(|(each, (_, n))| each.as_secs_f64() * f64::from(*n)).sum();
        // All estimates of the batch are assumed to be wrong by the same factor.
        let factor = took.as_secs_f64() / expected.max(SHORTEST.as_secs_f64());
        if self.of.len() >= MOST {
            self.of.clear();
        }
        for ((work, count), before) in batch.iter().zip(before) {
            let (each, count) = (before.as_secs_f64() * factor, f64::from(*count));
            let seen = self.of.entry(*work).or_default();
            seen.seconds = KEPT * seen.seconds + each.min(LONGEST.as_secs_f64()) * count;
            seen.count = KEPT * seen.count + count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_run_together_are_told_apart_when_their_mixture_changes() {
        let (short, long) = (Handle(1), Handle(2));
        let (real_short, real_long) = (Duration::from_micros(20), Duration::from_millis(3));
        let mut estimates = Estimates::default();
        for round in 0..200u32 {
            let batch = [(short, 1 + round % 7), (long, round % 3)];
            let batch = if round % 3 == 0 { &batch[..1] } else { &batch[..] };
            let took = batch.iter().map(|(work, n)| if *work == short { real_short } else { real_long } * *n).sum();
            estimates.learn(batch, took);
        }
        let near = |found: Duration, real: Duration| (found.as_secs_f64() / real.as_secs_f64() - 1.0).abs() < 0.25;
        assert!(near(estimates.of(short), real_short), "{:?}", estimates.of(short));
        assert!(near(estimates.of(long), real_long), "{:?}", estimates.of(long));
    }

    #[test]
    fn completions_that_are_seen_in_bunches_take_what_they_take_together() {
        let mut estimates = Estimates::default();
        for _ in 0..50 {
            estimates.learn(&[(Handle(1), 4)], Duration::from_micros(1600));
            (0..3).for_each(|_| estimates.learn(&[(Handle(1), 4)], Duration::ZERO));
        }
        let found = estimates.of(Handle(1));
        assert!((60..=140).contains(&found.as_micros()), "100 us each, not {found:?}");
    }

    #[test]
    fn nonsense_stays_within_bounds() {
        let mut estimates = Estimates::default();
        for took in [Duration::ZERO, Duration::MAX, Duration::ZERO] {
            for _ in 0..100 {
                estimates.learn(&[(Handle(1), 1)], took);
            }
            assert!((SHORTEST..=LONGEST).contains(&estimates.of(Handle(1))));
        }
    }
}
