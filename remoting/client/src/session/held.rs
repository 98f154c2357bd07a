//! Suspension of a session's share: the program waits at its next call that needs an answer, or has much to send.

use super::{Session, lock};
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
}

impl Session {
    /// Notes that the worker suspended the share, with the reason; or, without a reason, that it resumed it. For the
    /// reader.
    pub(super) fn hold(&self, reason: &str) {
        let mut since = lock(&self.held.since);
        self.held.on.store(!reason.is_empty(), SeqCst);
        let peer = &self.peer;
        if !reason.is_empty() {
            *since = Some(Instant::now());
            return log::error(&format!(
                "the share on appliance {peer} is suspended ({reason}); CUDA calls wait for it"
            ));
        }
        if let Some(since) = since.take() {
            let seconds = since.elapsed().as_secs_f32();
            log::error(&format!("the share on appliance {peer} is back after {seconds:.1} s; the program continues"));
        }
        // The stripes that were open have ended.
        self.end_stripes();
        // The background thread sends: the reader may not wait for the lock.
        self.held.released.store(true, SeqCst);
        self.wake.wake();
    }
}
