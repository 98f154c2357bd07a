//! Faults of the client itself. A panic in the reader or in a thread of the session ends the session: otherwise other
//! threads would wait for that thread without end.

use super::Session;
use crate::program::sys;
use driverapi::errors::CUDA_ERROR_EXTERNAL_DEVICE;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

/// Returns the reason that a user reads.
fn reason(role: &str, fault: &(dyn Any + Send)) -> String {
    let text = fault.downcast_ref::<&str>().copied().or(fault.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("it panicked");
    format!("{role} failed by a fault in remotegpu's client library ({text}); report it with the lines before this one")
}

impl Session {
    /// Reads as the reader, then gives the role away. If `read` panics, the session is lost.
    pub(super) fn lead_while(&self, read: impl FnOnce()) {
        if let Err(fault) = catch_unwind(AssertUnwindSafe(read)) {
            self.lose(0, &reason("the thread that reads", &*fault));
        }
        self.lead.leave(|| self.watch.arm());
    }

    /// Runs what a thread of the session does. If it panics, the session is lost. `role` is the name of the thread.
    pub(super) fn guarded(&self, role: &str, body: impl FnOnce()) {
        if let Err(fault) = catch_unwind(AssertUnwindSafe(body)) {
            self.fail(reason(&format!("the thread {role}"), &*fault));
        }
    }

    /// Ends the session from a thread that is not the reader. Only the reader may mark the session as lost, so another
    /// reader finds the closed connection and this fault.
    fn fail(&self, fault: String) {
        let fault = self.fault.get_or_init(|| fault);
        let _ = self.failure.compare_exchange(0, CUDA_ERROR_EXTERNAL_DEVICE, SeqCst, SeqCst);
        sys::shut_down(self.fd());
        if self.lead.try_enter(|| self.watch.disarm()) {
            self.lead_while(|| self.lose(0, fault));
        }
    }

    /// Returns `Ok` while no thread of the session has failed.
    ///
    /// # Errors
    /// The reason for the user.
    pub(super) fn check_threads(&self) -> Result<(), String> {
        self.fault.get().map_or(Ok(()), |fault| Err(fault.clone()))
    }
}
