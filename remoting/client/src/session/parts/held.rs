//! Suspension of a session's share. While it lasts, the program waits at its next call that needs an answer, or when it
//! has too many bytes to send.

use super::wait::lock;
use crate::program::log;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

#[derive(Default)]
pub struct Held {
    on: AtomicBool,
    /// Whether the suspension has ended, and the background thread has not yet begun to send the waiting frames.
    released: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl Held {
    pub fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Returns whether a suspension has ended since the last call of this function.
    pub fn take_released(&self) -> bool {
        self.released.swap(false, SeqCst)
    }

    /// Marks the suspension as ended, so that the background thread sends the waiting frames.
    pub fn release(&self) {
        self.released.store(true, SeqCst);
    }

    /// Records that the worker suspended the share for `reason`, or resumed it if `reason` is empty. Returns whether it
    /// was resumed. The reader calls this.
    pub fn note(&self, peer: &str, reason: &str) -> bool {
        let mut since = lock(&self.since);
        self.on.store(!reason.is_empty(), SeqCst);
        if !reason.is_empty() {
            *since = Some(Instant::now());
            log::error(&format!("the share on appliance {peer} is suspended ({reason}); CUDA calls wait for it"));
            return false;
        }
        if let Some(since) = since.take() {
            let seconds = since.elapsed().as_secs_f32();
            log::error(&format!("the share on appliance {peer} is back after {seconds:.1} s; the program continues"));
        }
        true
    }
}
