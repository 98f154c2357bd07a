//! Shared parts of all exported functions: the guard at the C boundary, and access to the caller's pointers.

use crate::Code;
use crate::program::log::{self, Level};
use crate::program::stats::Counter;
use crate::program::{process, sys};
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
use driverapi::refusals::{self, first_time, is_asked_in_passing};
use driverapi::report;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stream that a null handle stands for: the context's legacy stream, or one per host thread (`_ptds`, `_ptsz`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    Legacy,
    PerThread,
}

pub const LEGACY: DefaultStream = DefaultStream::Legacy;
pub const PER_THREAD: DefaultStream = DefaultStream::PerThread;

/// Declares exported functions that fail before `cuInit`. A body has type `Result<(), Code>` and may dereference the
/// caller's pointers. As for every C function, the caller promises that they are as CUDA documents them.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_variables, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::Code {
            static COUNTER: $crate::program::stats::Counter = $crate::program::stats::Counter::new(stringify!($name));
            #[allow(unused_unsafe)]
            let code =
                $crate::boundary::guard_if($crate::program::process::check_initialised, &COUNTER, || unsafe { $body });
            if code != 0 {
                $crate::boundary::failed(COUNTER.name, code, &[$(::driverapi::refusals::word(&$argument)),*]);
            }
            code
        }
    )*};
}

/// Declares exported functions that also work before `cuInit` and in a forked child.
macro_rules! early_exports {
    ($(fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::Code {
            static COUNTER: $crate::program::stats::Counter = $crate::program::stats::Counter::new(stringify!($name));
            #[allow(unused_unsafe)]
            $crate::boundary::guard_early(&COUNTER, || unsafe { $body })
        }
    )*};
}

/// Declares pairs of exported functions that differ in the meaning of the null stream.
macro_rules! stream_exports {
    ($(fn $name:ident | $per_thread:ident($($argument:ident : $type:ty),* $(,)?) |$default:ident| $body:block)*) => {
        $crate::exports! {$(
            fn $name($($argument: $type),*) { let $default = $crate::boundary::LEGACY; $body }
            fn $per_thread($($argument: $type),*) { let $default = $crate::boundary::PER_THREAD; $body }
        )*}
    };
}

pub(crate) use {early_exports, exports, stream_exports};

/// Like [`guard_if`], for a function that may be called before `cuInit`.
pub fn guard(counter: &'static Counter, body: impl FnOnce() -> Result<(), Code>) -> Code {
    guard_if(process::check_alive, counter, body)
}

/// Like [`guard_if`], for a function that a forked child may call.
pub fn guard_early(counter: &'static Counter, body: impl FnOnce() -> Result<(), Code>) -> Code {
    guard_if(process::check_not_gone, counter, body)
}

/// Runs the body of an exported function if `check` returns `Ok`. Counts the call, restores errno, and converts a panic
/// to an error. The thread cannot be cancelled (`pthread_cancel`) meanwhile.
pub fn guard_if(
    check: impl FnOnce() -> Result<(), Code>,
    counter: &'static Counter,
    body: impl FnOnce() -> Result<(), Code>,
) -> Code {
    let errno = sys::errno();
    let _not_now = sys::Uncancelled::new();
    let result = check().and_then(|()| {
        counter.begin();
        let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(CUDA_ERROR_UNKNOWN));
        counter.end();
        result
    });
    let code = result.err().unwrap_or(0);
    if code == CUDA_ERROR_NOT_SUPPORTED {
        report::refused(counter.name);
        if !SAID.take() {
            say_refused(counter.name, "is not provided as the program uses it, or not by the appliance's driver");
        }
    }
    sys::set_errno(errno);
    if code != 0 && log::enabled(Level::Debug) {
        log::line(Level::Debug, &format!("{} -> {code}", counter.name));
    }
    code
}

thread_local! {
    /// Whether the current call of this thread has already logged why it returns `CUDA_ERROR_NOT_SUPPORTED`.
    static SAID: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current call as explained. The caller has logged its own message for `CUDA_ERROR_NOT_SUPPORTED`.
pub fn has_said() {
    SAID.set(true);
}

/// Refuses a function that is not supported, and logs that once for each name.
///
/// # Errors
/// Always `CUDA_ERROR_NOT_SUPPORTED`.
pub fn refused(name: &'static str) -> Result<(), Code> {
    say_refused(name, "is not provided by remotegpu");
    has_said();
    Err(CUDA_ERROR_NOT_SUPPORTED)
}

#[cold]
fn say_refused(name: &str, why: &str) {
    if first_time(name) {
        let level = if is_asked_in_passing(name) { Level::Info } else { Level::Error };
        log::line(level, &format!("{name} {why}; the program gets CUDA_ERROR_NOT_SUPPORTED"));
    }
}

/// Counts and logs the attribute or option that made a call fail, if one did.
#[cold]
pub fn failed(name: &'static str, code: Code, arguments: &[u64]) {
    let errno = sys::errno();
    refusals::failed(name, code, arguments, log::error);
    sys::set_errno(errno);
}

/// Stores a result at the caller's pointer.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Like [`write`], for a result that the caller may not want: a null pointer is allowed.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write_optional<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as the caller vouches.
        unsafe { to.write_unaligned(value) };
    }
}

/// Returns a descriptor that the program passed in place of a pointer. The program still owns it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the value cannot be a descriptor.
///
/// # Safety
/// The descriptor is open while the result is used.
pub unsafe fn descriptor<'a>(value: *mut c_void) -> Result<BorrowedFd<'a>, Code> {
    let fd = c_int::try_from(value.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: the number is not -1, and it is open as the caller vouches.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Reads a structure at the caller's pointer.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or valid for a read.
pub unsafe fn input<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads `count` consecutive values. An empty list may be a null pointer.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or valid for reads of `count` values.
pub unsafe fn inputs<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, Code> {
    if from.is_null() && count > 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok((0..count).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
}

/// Reads a string at the caller's pointer.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or a string that ends with a NUL.
pub unsafe fn text<'a>(from: *const c_char) -> Result<&'a CStr, Code> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok(unsafe { CStr::from_ptr(from) })
}

/// Copies a text into the caller's buffer. A text that is too long is cut. The result always ends with a NUL.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer or an empty buffer.
///
/// # Safety
/// `to` is null or valid for writes of `len` bytes.
pub unsafe fn write_text(to: *mut c_char, len: usize, value: &str) -> Result<(), Code> {
    if to.is_null() || len == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let count = value.len().min(len - 1);
    // SAFETY: `count + 1 <= len`.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), count);
        to.add(count).write(0);
    }
    Ok(())
}
