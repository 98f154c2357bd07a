//! Decides which refusals the log reports in full, and counts the others. Pure.

use std::time::{Duration, Instant};

/// Limit on the refusals that are reported in full within a [`PERIOD`]. People read the appliance's log, so it must
/// stay short.
const MOST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Refusals {
    since: Option<Instant>,
    told: u32,
    left_out: u64,
}

impl Refusals {
    /// Whether to report a refusal in full. If this returns false, the refusal is counted.
    pub fn tell(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let tell = self.told < MOST;
        self.told += u32::from(tell);
        self.left_out += u64::from(!tell);
        tell
    }

    /// Counts a refusal that should have been reported in full, but could not be sent.
    pub fn lost(&mut self) {
        self.left_out += 1;
    }

    /// Returns the number of counted refusals when a period ends. Returns `None` before that, or if the number is 0.
    pub fn left_out(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since?) < PERIOD {
            return None;
        }
        let left_out = std::mem::take(self).left_out;
        (left_out > 0).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_told_or_counted() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let told = (0..100).filter(|_| refusals.tell(start)).count();
        assert_eq!(refusals.left_out(start), None, "the period is not over");
        let left_out = refusals.left_out(start + PERIOD).unwrap();
        assert_eq!((told, left_out), (10, 90));
        assert!(refusals.tell(start + PERIOD), "a new period begins");
        assert_eq!(refusals.left_out(start + 2 * PERIOD), None);
    }
}
