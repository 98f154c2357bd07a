//! Decides which refusals are reported in full; counts the others. Pure.

use std::time::{Duration, Instant};

/// Limit on the refusals that are reported in full within a [`PERIOD`]; people read an appliance's log.
const MOST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Refusals {
    since: Option<Instant>,
    told: u32,
    left_out: u64,
}

impl Refusals {
    /// Whether to report a refusal in full. If not, it is counted.
    pub fn tell(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let tell = self.told < MOST;
        self.told += u32::from(tell);
        self.left_out += u64::from(!tell);
        tell
    }

    /// Counts a refusal that could not be reported in full.
    pub fn lost(&mut self) {
        self.left_out += 1;
    }

    /// Returns the number of refusals left out, at the end of a period with some.
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
