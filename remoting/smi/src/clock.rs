//! Formats the local time.

use std::ffi::CStr;

/// Returns the current local time, formatted by `strftime`.
pub fn now(format: &CStr) -> String {
    let mut text = [0u8; 64];
    // SAFETY: all arguments are locals, and the length is that of the buffer; an all-zero `tm` is a valid one.
    let length = unsafe {
        let time = libc::time(std::ptr::null_mut());
        let mut local = std::mem::zeroed();
        libc::localtime_r(&time, &mut local);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &local)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}
