//! Conversions between C handles and object ids, and the check that reserved flags are 0.

use crate::ffi::R;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::ffi::c_void;
use std::ptr;

/// Returns the object id in a handle.
pub fn id(handle: *mut c_void) -> usize {
    handle.addr()
}

pub fn handle(id: usize) -> *mut c_void {
    ptr::without_provenance_mut(id)
}

/// Fails with `CUDA_ERROR_INVALID_VALUE` unless the reserved flags are 0.
pub fn no_flags(flags: u64) -> R {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
