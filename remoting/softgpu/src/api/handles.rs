//! Handles and reserved words, as C has them.

use crate::ffi::R;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::ffi::c_void;
use std::ptr;

/// The number a handle stands for.
pub fn id(handle: *mut c_void) -> usize {
    handle.addr()
}

pub fn handle(id: usize) -> *mut c_void {
    ptr::without_provenance_mut(id)
}

/// Reserved words that have to be 0.
pub fn no_flags(flags: u64) -> R {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
