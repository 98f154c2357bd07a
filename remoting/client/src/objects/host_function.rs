//! Functions of the program that a stream calls.

use crate::Code;
use crate::memory::mapped;
use crate::objects::stream::Target;
use driverapi::types::CUhostFn;
use std::sync::Arc;

/// A function of the program, and its argument as an address.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: CUhostFn,
    pub data: usize,
}

impl HostCall {
    /// Queues the call in a stream. The call runs when the stream reaches it.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post(self, target: &Target) -> Result<(), Code> {
        let session = Arc::clone(&target.live.session);
        let call = move |_status| {
            let _ = mapped::after_wait(&session);
            let data = std::ptr::with_exposed_provenance_mut(self.data);
            if let Some(function) = self.function {
                // SAFETY: the program gave this function, to be called with this argument.
                unsafe { function(data) };
            }
        };
        target.live.session.post_callback(target.stream_id, Box::new(call))
    }
}
