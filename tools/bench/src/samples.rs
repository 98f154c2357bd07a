//! Repeated time measurements.

use std::time::{Duration, Instant};

/// The number of repetitions of a measurement, and their time limit.
#[derive(Debug, Clone, Copy)]
pub struct Repeat {
    pub times: usize,
    /// The time limit for all repetitions after the first three. On a slow connection a thousand repetitions would take
    /// minutes.
    pub at_most: Duration,
}

const AT_LEAST: usize = 3;

/// Returns the median time of the runs in seconds. One run before them is not counted.
///
/// # Errors
/// The first failure.
pub fn median_seconds(repeat: Repeat, mut run: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    run()?;
    let began = Instant::now();
    let mut seconds = Vec::with_capacity(repeat.times);
    while seconds.len() < repeat.times && (seconds.len() < AT_LEAST || began.elapsed() < repeat.at_most) {
        let started = Instant::now();
        run()?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

pub fn gigabits_per_second(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 * 8e-9 / seconds
}

/// Returns incompressible bytes, the same in every run.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut words = Vec::with_capacity(len + 8);
    while words.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words.truncate(len);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![9.0, 1.0, 2.0, 4.0]), 3.0);
    }

    fn runs(repeat: Repeat) -> usize {
        let mut runs = 0;
        median_seconds(repeat, || {
            runs += 1;
            Ok(())
        })
        .unwrap();
        runs
    }

    #[test]
    fn what_is_timed_runs_as_often_as_asked_and_once_before() {
        assert_eq!(runs(Repeat { times: 5, at_most: Duration::MAX }), 6);
    }

    #[test]
    fn what_takes_too_long_runs_a_few_times() {
        assert_eq!(runs(Repeat { times: 1000, at_most: Duration::ZERO }), 4);
    }

    #[test]
    fn bandwidth_counts_bits() {
        assert_eq!(gigabits_per_second(1_000_000_000, 2.0), 4.0);
    }

    #[test]
    fn noise_has_the_length_and_does_not_repeat() {
        let bytes = noise(4099);
        assert_eq!(bytes.len(), 4099);
        assert_ne!(bytes[..2048], bytes[2048..4096]);
    }
}
