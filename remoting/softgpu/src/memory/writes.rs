//! Tracking of writes to device memory by the kernel. A worker uses it to report changes to its client.

use crate::ffi::R;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use driverapi::rules::{Rule, kept};
use driverapi::written::{Notes, PAGE};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static NOTES: OnceLock<Notes> = OnceLock::new();

/// Starts to track writes. `pagemap` is a descriptor of `driverapi::written::PAGEMAP`.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if the kernel does not support this.
pub fn follow(pagemap: OwnedFd) -> R {
    let notes = Notes::with(pagemap).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    // If an earlier call has set a descriptor, that one stays in use.
    let _ = NOTES.set(notes);
    Ok(())
}

/// Returns the pages that were written since the last call, in ascending order. The parts consist of whole pages of the
/// arena. In the first call, and after a range was mapped again, all its pages count as written.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` unless `pages` consists of whole pages, `CUDA_ERROR_OPERATING_SYSTEM` if the writes are
/// not known.
pub fn taken(pages: Range<usize>) -> R<Vec<Range<usize>>> {
    if pages.is_empty() || !pages.start.is_multiple_of(PAGE) || !pages.end.is_multiple_of(PAGE) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let notes = NOTES.get().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
    if let Ok(found) = notes.take(&pages) {
        return Ok(found);
    }
    let anew = notes.register(&pages).and_then(|()| notes.take(&pages));
    anew.map(|_| vec![pages]).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
}

/// Records that a hole was punched in the file behind these pages. The kernel does not track that.
pub fn emptied(pages: Range<usize>) {
    if let Some(notes) = NOTES.get().filter(|_| kept(Rule::TrackHoles)) {
        notes.unregister(&pages);
    }
}
