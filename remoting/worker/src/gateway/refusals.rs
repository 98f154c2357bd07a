//! Which refusals the appliance is told of: some in full, of the rest the number. Pure.

use std::time::{Duration, Instant};

/// Told in full within a [`PERIOD`]; the log of an appliance is for people.
const MOST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Refusals {
    since: Option<Instant>,
    told: u32,
    left_out: u64,
}

impl Refusals {
    /// Whether to tell of a refusal in full. If not, it is counted.
    pub fn tell(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let tell = self.told < MOST;
        self.told += u32::from(tell);
        self.left_out += u64::from(!tell);
        tell
    }

    /// One that was to be told of could not be.
    pub fn lost(&mut self) {
        self.left_out += 1;
    }

    /// At the end of a period in which some were left out: how many.
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
