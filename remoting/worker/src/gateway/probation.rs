//! The time until a connection has proved whom it is for.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::PATIENCE;

/// Ends with a valid ticket; until then the connection takes one of the few places for strangers.
#[derive(Debug)]
pub struct Probation {
    deadline: Instant,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Probation {
    pub fn new(place: OwnedSemaphorePermit) -> Self {
        Probation { deadline: Instant::now() + PATIENCE, place: Mutex::new(Some(place)) }
    }

    pub fn pass(&self) {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns when time is up and no ticket was shown; never, if one was.
    pub async fn failed(&self) {
        tokio::time::sleep_until(self.deadline).await;
        if self.place.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// The result of `work`, or `None` when time is up.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.deadline, work).await.ok()
    }
}

/// Said of a connection whose time is up.
pub fn too_slow() -> String {
    format!("showed no preface within {} s", Duration::as_secs(&PATIENCE))
}
