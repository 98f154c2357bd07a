//! Writes to device memory, as the kernel notes them: for a worker, which reports changes to its client.

use crate::ffi::R;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use driverapi::written::{Notes, PAGE};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static NOTES: OnceLock<Notes> = OnceLock::new();

/// Lets the kernel note writes. `pagemap`: a descriptor of `driverapi::written::PAGEMAP`.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if it cannot.
pub fn follow(pagemap: OwnedFd) -> R {
    let notes = Notes::with(pagemap).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    // The descriptor of an earlier call serves as well.
    let _ = NOTES.set(notes);
    Ok(())
}

/// Returns the parts of whole pages of the arena that were written since the last call, in order: all of them at first,
/// and where they were mapped again.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if it is not known.
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

/// Notes that a hole was made in the file behind these pages, which the kernel does not note.
pub fn emptied(pages: Range<usize>) {
    if let Some(notes) = NOTES.get() {
        notes.unregister(&pages);
    }
}
