//! Fills (`cuMemset*`) of memory that may be the program's own, as unified addressing has it.
//!
//! CUDA's page "API synchronization behavior" (docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html) says which
//! fills are complete when the call returns: those of page-locked memory without "Async" in their name, and no others.

use crate::call::Code;
use crate::context::Live;
use crate::copy::{self, Shape, Side};
use crate::memory::{host, mapped};
use crate::session::{HostBox, Session};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::Arc;

/// Whose memory a fill writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Device,
    /// Page-locked memory that the device has at this address.
    Mirrored(u64),
    Host(HostBox),
}

/// What an address is to a fill of the context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, also for memory of the program that is not page-locked.
pub fn find(live: &Live, to: Side, shape: Shape) -> Result<Found, Code> {
    if shape.is_empty() {
        return Ok(Found::Device);
    }
    if shape.height > 1 && to.pitch < shape.width {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let Some(range) = host::find(to.address as usize) else {
        return copy::check_written(live, to, shape).map(|()| Found::Device);
    };
    let span = to.span(&shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if span > (range.start + range.size) as u64 - to.address {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mirror = mapped::device_address(&live.session, to.address, span);
    Ok(mirror.map_or_else(|| Found::Host(to.host(&shape)), Found::Mirrored))
}

/// Memory of this process with what is to be written to it.
pub struct Fill {
    memory: HostBox,
    element: Vec<u8>,
}

impl Fill {
    pub fn new(memory: HostBox, element: &[u8]) -> Fill {
        Fill { memory, element: element.to_vec() }
    }

    /// In the order of the stream, and before the return if `waits`.
    ///
    /// # Errors
    /// The code of earlier work that failed, if it is waited for, or the session's sticky error.
    pub fn run(self, session: &Arc<Session>, stream_id: u64, waits: bool) -> Result<(), Code> {
        if !waits {
            let write = move |code| {
                if code == 0 {
                    self.memory.fill(&self.element);
                }
            };
            return session.post_callback(stream_id, Box::new(write));
        }
        session.synchronise_stream(stream_id)?;
        self.memory.fill(&self.element);
        mapped::after_wait(session)
    }
}
