//! The C boundary of NVML's functions.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use driverapi::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNKNOWN,
    NVML_SUCCESS, nvmlReturn_t,
};
use driverapi::report;

use crate::program::stats::Counter;
use crate::program::sys;

/// The error code of a body.
pub type Code = nvmlReturn_t;

/// Declares exported functions. A body has type `Result<(), Code>` and may dereference the caller's pointers. As for
/// every C function, the caller promises that they are as NVML documents them.
macro_rules! nvml_exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> driverapi::nvml::nvmlReturn_t {
            static COUNTER: $crate::program::stats::Counter = $crate::program::stats::Counter::new(stringify!($name));
            #[allow(unused_unsafe)]
            $crate::nvml::guard(&COUNTER, move || -> Result<(), driverapi::nvml::nvmlReturn_t> { unsafe { $body } })
        }
    )*};
}
pub(super) use nvml_exports;

/// Runs the body of an exported function. Counts the call, restores errno, and converts a panic to an error.
pub fn guard(counter: &'static Counter, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let errno = sys::errno();
    let _not_now = sys::Uncancelled::new();
    counter.begin();
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(NVML_ERROR_UNKNOWN));
    counter.end();
    let code = result.err().unwrap_or(NVML_SUCCESS);
    if code == NVML_ERROR_NOT_SUPPORTED {
        report::refused_nvml(counter.name);
    }
    sys::set_errno(errno);
    code
}

/// Stores a result at the caller's pointer.
///
/// # Errors
/// `NVML_ERROR_INVALID_ARGUMENT` for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: as the caller vouches.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads a value at the caller's pointer.
///
/// # Errors
/// `NVML_ERROR_INVALID_ARGUMENT` for a null pointer.
///
/// # Safety
/// `from` is null or valid for a read.
pub unsafe fn read<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: as the caller vouches.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads a string at the caller's pointer.
///
/// # Errors
/// `NVML_ERROR_INVALID_ARGUMENT` for a null pointer.
///
/// # Safety
/// `from` is null or a string that ends with a NUL and outlives the result.
pub unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Code> {
    if from.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: as the caller vouches.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

/// Copies a text and its NUL into the caller's buffer.
///
/// # Errors
/// `NVML_ERROR_INSUFFICIENT_SIZE` if it does not fit, `NVML_ERROR_INVALID_ARGUMENT` for a null pointer.
///
/// # Safety
/// `to` is null or valid for writes of `len` bytes.
pub unsafe fn write_text(to: *mut c_char, len: u32, value: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    if value.len() >= len as usize {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    // SAFETY: `value.len() + 1 <= len`.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), value.len());
        to.add(value.len()).write(0);
    }
    Ok(())
}
