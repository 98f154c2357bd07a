//! Suspension of a session's share: the program waits at its next call that needs an answer, or has much to send.

use super::wait::lock;
use crate::program::log;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

#[derive(Default)]
pub struct Held {
    on: AtomicBool,
    /// Set when the frames that were held back are to be sent.
    released: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl Held {
    pub fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Whether the suspension ended since the last call.
    pub fn take_released(&self) -> bool {
        self.released.swap(false, SeqCst)
    }

    /// Lets the frames be sent that were held back.
    pub fn release(&self) {
        self.released.store(true, SeqCst);
    }

    /// Notes that the worker suspended the share, with the reason; or, without a reason, that it resumed it. Returns
    /// whether it resumed it. For the reader.
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
