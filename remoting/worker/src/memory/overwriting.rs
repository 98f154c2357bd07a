//! Overwrites GPU memory on a helper's thread, and waits until that is done.

use crate::driver::{Driver, Handle, Result};
use driverapi::errors::*;
use std::time::{Duration, Instant};

const NON_BLOCKING: u32 = 1;

/// Limit on the total time that an ending session waits for work on its memory, because a kernel may occupy the whole
/// device.
const LAST_WAITS: Duration = Duration::from_secs(2);

/// A time limit that several waits share. A long wait leaves less time for the next one.
#[derive(Debug)]
pub struct Together {
    left: Duration,
}

impl Default for Together {
    fn default() -> Self {
        Together { left: LAST_WAITS }
    }
}

impl Together {
    /// Runs `wait` with the remaining time as its limit.
    pub fn spend<T>(&mut self, wait: impl FnOnce(Duration) -> T) -> T {
        let since = Instant::now();
        let waited = wait(self.left);
        self.left = self.left.saturating_sub(since.elapsed());
        waited
    }
}

/// The context and the stream that fill memory of a device. The stream has no work of the tenant.
#[derive(Debug, Clone, Copy)]
pub struct Filler {
    pub context: Handle,
    pub stream: Handle,
}

/// Overwrites mapped memory of a device. Call this on a helper's thread: it returns when the memory is overwritten.
///
/// # Errors
/// Fails if both the session's context and a new one cannot overwrite the memory.
pub fn scrub(driver: &Driver, device: u32, address: u64, size: u64, filler: Option<Filler>) -> Result<()> {
    if filler.is_some_and(|filler| fill(driver, address, size, filler).is_ok()) {
        return Ok(());
    }
    with_filler(driver, device, None, |filler| fill(driver, address, size, filler))
}

/// Runs `job` with a current context: the session's context or, if the session has none on the device or has just
/// destroyed it, a new one.
///
/// # Errors
/// Fails if there is no context. Otherwise, the errors of `job`.
pub fn with_filler<T>(
    driver: &Driver,
    device: u32,
    filler: Option<Filler>,
    job: impl FnOnce(Filler) -> Result<T>,
) -> Result<T> {
    if let Some(filler) = filler.filter(|filler| driver.set_current(filler.context).is_ok()) {
        return job(filler);
    }
    let device = driver.device(device as i32)?;
    let context = driver.primary_retain(device, 0)?;
    let done = driver.set_current(context).and_then(|()| driver.stream_create(NON_BLOCKING, 0)).and_then(|stream| {
        let done = job(Filler { context, stream });
        driver.stream_destroy(stream).and(done)
    });
    driver.set_current(Handle::NULL).and_then(|()| driver.primary_release(device)).and(done)
}

fn fill(driver: &Driver, address: u64, size: u64, filler: Filler) -> Result<()> {
    driver.set_current(filler.context)?;
    driver.set_bytes(address, 0, size, filler.stream)?;
    wait(driver, filler.stream)
}

/// Waits until the stream has completed its work. The stream's context must be current.
///
/// # Errors
/// The error of that work.
pub fn wait(driver: &Driver, stream: Handle) -> Result<()> {
    const LONGEST: Duration = Duration::from_millis(1);
    let since = Instant::now();
    loop {
        match driver.stream_query(stream) {
            Err(CUDA_ERROR_NOT_READY) => std::thread::sleep((since.elapsed() / 16).min(LONGEST)),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_have_their_time_together_take_no_longer_than_one() {
        const ALL: Duration = Duration::from_millis(40);
        let mut together = Together { left: ALL };
        let first = together.spend(|most| {
            std::thread::sleep(most / 2);
            most
        });
        assert_eq!(first, ALL);
        let rest = together.spend(|most| {
            std::thread::sleep(most);
            most
        });
        assert!(rest <= ALL / 2, "{rest:?} are left of {ALL:?}");
        assert_eq!(together.spend(|most| most), Duration::ZERO);
    }
}
