//! What is written of device memory, as the kernel notes it: for a worker, which tells its client of changes.

use crate::ffi::R;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use driverapi::written::{Notes, PAGE};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static NOTES: OnceLock<Notes> = OnceLock::new();

/// Lets the kernel note what is asked for. `pagemap`: what was opened of `driverapi::written::PAGEMAP`.
///
/// # Errors
/// `CUDA_ERROR_OPERATING_SYSTEM` if it cannot.
pub fn follow(pagemap: OwnedFd) -> R {
    let notes = Notes::with(pagemap).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    // Another one serves as well.
    let _ = NOTES.set(notes);
    Ok(())
}

/// What was written of whole pages of the arena since this was last asked, in order; at first, and where they were mapped
/// anew, all.
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

/// A hole was made in the file behind these pages, which the kernel does not note.
pub fn emptied(pages: Range<usize>) {
    if let Some(notes) = NOTES.get() {
        notes.unregister(&pages);
    }
}
