//! How long kernels take: a moving average for each, learned from batches of launches. Pure.

use crate::driver::Handle;
use std::collections::HashMap;
use std::time::Duration;

/// What is taken of a kernel that never ran. Little of such is queued.
const UNKNOWN: Duration = Duration::from_micros(250);
const SHORTEST: Duration = Duration::from_nanos(500);
const LONGEST: Duration = Duration::from_secs(60);
/// A program that loads and unloads modules for ever has ever new kernels.
const MOST: usize = 1 << 14;

#[derive(Debug, Default)]
pub struct Estimates {
    /// Of a function, or of an executable graph, which is one piece of work.
    of: HashMap<Handle, Duration>,
}

impl Estimates {
    pub fn of(&self, work: Handle) -> Duration {
        self.of.get(&work).copied().unwrap_or(UNKNOWN)
    }

    /// These, of which each was expected to take what `of` says, took so long together.
    pub fn learn(&mut self, batch: &[(Handle, u32)], took: Duration) {
        let expected: Duration = batch.iter().map(|(work, count)| self.of(*work) * *count).sum();
        // Each is taken to be wrong by the same factor, of which half is believed.
        let factor = (1.0 + took.as_secs_f64() / expected.max(SHORTEST).as_secs_f64()) / 2.0;
        if self.of.len() >= MOST {
            self.of.clear();
        }
        for (work, _) in batch {
            let now = self.of(*work).as_secs_f64() * factor;
            self.of.insert(*work, Duration::try_from_secs_f64(now).unwrap_or(LONGEST).clamp(SHORTEST, LONGEST));
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
