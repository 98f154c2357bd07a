//! A cache for one value that is requested again when it is old.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The maximum age of a value. A tool reads ten values of a device at a time, and this takes one request instead of
/// ten.
const FRESH: Duration = Duration::from_millis(100);

/// The time after a failed request during which calls fail at once, without waiting for the appliance.
const FAILURE_STANDS: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Memo<T, E>(Mutex<Option<(Instant, Result<T, E>)>>);

impl<T, E> Default for Memo<T, E> {
    fn default() -> Self {
        Memo(Mutex::new(None))
    }
}

impl<T: Clone, E: Clone> Memo<T, E> {
    /// Returns the value, and requests it with `ask` if it is old. Other threads wait for the same request.
    pub fn get(&self, ask: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, value)) = &*kept
            && when.elapsed() < if value.is_ok() { FRESH } else { FAILURE_STANDS }
        {
            return value.clone();
        }
        let value = ask();
        *kept = Some((Instant::now(), value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_stand_longer_than_values() {
        let value = Memo::<i32, ()>::default();
        assert_eq!(value.get(|| Ok(1)), Ok(1));
        std::thread::sleep(FRESH);
        assert_eq!(value.get(|| Ok(2)), Ok(2), "asked again");
        let failure = Memo::<i32, ()>::default();
        assert_eq!(failure.get(|| Err(())), Err(()));
        std::thread::sleep(FRESH);
        assert_eq!(failure.get(|| Ok(2)), Err(()), "not asked again");
    }
}
