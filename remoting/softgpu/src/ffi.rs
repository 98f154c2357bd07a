//! The C boundary: it converts arguments from a program, and stores results in the program's memory.
//!
//! `Out`, `In`, `Array` and `Text` have the layout of a C pointer, so an entry point can use them in its signature.
//! They check for null. The caller guarantees that the memory behind a pointer is as the CUDA documentation says.

use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};
use driverapi::refusals::{self, first_time, is_asked_in_passing};
use driverapi::report;
use driverapi::types::CUresult;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

/// The result of all functions behind an entry point. The error is the `CUresult` that the program receives.
pub type R<T = ()> = Result<T, CUresult>;

/// Runs the body of an entry point. A panic becomes an error code and does not cross the C boundary.
pub fn edge(body: impl FnOnce() -> R) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// Runs the body of an entry point as `edge` does. Reports use `name` for the function.
pub fn entry(name: &'static str, body: impl FnOnce() -> R) -> CUresult {
    let code = edge(body);
    if code == CUDA_ERROR_NOT_SUPPORTED {
        report::refused(name);
        tell(name);
    }
    code
}

/// Writes a line to stderr with one system call, so that lines of several processes do not mix. Errors, such as a
/// closed stderr, are ignored.
pub fn print(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Logs that a function is not supported, once for each name.
pub fn tell(name: &'static str) {
    if !is_asked_in_passing(name) && first_time(name) {
        say(&format!("{name} is not supported, or not as the program uses it"));
    }
}

pub fn say(line: &str) {
    print(&format!("remotegpu: software GPU: {line}"));
}

/// Counts and logs an attribute or option that made a call fail. Does nothing if `code` is success.
#[cold]
pub fn failed(name: &'static str, code: CUresult, arguments: &[u64]) {
    if !is_of_worker() {
        refusals::failed(name, code, arguments, say);
    }
}

/// Whether this process is an appliance's worker. Its failed calls are not reported, because it queries all attributes
/// of a kernel in advance. The client reports the attributes that a program queried without success.
fn is_of_worker() -> bool {
    static WORKER: OnceLock<bool> = OnceLock::new();
    *WORKER.get_or_init(|| {
        let program = std::env::args_os().next().unwrap_or_default();
        Path::new(&program).file_name().is_some_and(|name| name == "remotegpu-worker")
    })
}

/// A pointer to which a function writes a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

// A derived `Clone` or `Copy` would require the same trait of `T`.
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub fn at(address: *mut T) -> Self {
        Self(address)
    }

    pub fn address(self) -> *mut T {
        self.0
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn set(self, value: T) -> R {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller promises a writable T, which C does not align beyond what the type needs.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores a result if the pointer is not null.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    pub fn is_aligned_to(self, bytes: usize) -> bool {
        self.0.addr().is_multiple_of(bytes)
    }

    /// Fails if the pointer is null. Call this before an object is created, because the program could not name the
    /// object.
    pub fn required(self) -> R<Self> {
        if self.0.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(self) }
    }

    /// Writes the elements of an array. The array must have room for all of them.
    pub fn set_all(self, values: impl IntoIterator<Item = T>) -> R {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: the caller gave the number of elements that the iterator was cut to.
            unsafe { self.0.add(i).write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// Reads an in/out argument, such as a size or a version, before the result is written to it.
    pub fn get(self) -> R<T> {
        In(self.0.cast_const()).get()
    }
}

impl Out<c_char> {
    /// Writes text with a NUL at its end. The text is truncated so that it fills at most `size` bytes.
    pub fn set_text(self, text: &str, size: usize) -> R {
        if size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let kept = text.len().min(size - 1);
        self.set_all(text.bytes().take(kept).chain([0]).map(|b| b as c_char))
    }
}

/// A pointer to an argument that a function reads.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub fn at(address: *const T) -> Self {
        Self(address)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn address(self) -> *const T {
        self.0
    }
}

impl<T: Copy> In<T> {
    pub fn get(self) -> R<T> {
        self.read(0)
    }

    fn read(self, i: usize) -> R<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller promises readable elements.
        Ok(unsafe { self.0.add(i).read_unaligned() })
    }

    /// Copies the first `count` elements of an array.
    pub fn list(self, count: usize) -> R<Vec<T>> {
        if count > isize::MAX as usize / size_of::<T>().max(1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        (0..count).map(|i| self.read(i)).collect()
    }
}

/// A C string from the program.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn get<'a>(self) -> R<&'a str> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller promises a NUL-terminated string that outlives the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)
    }
}

/// Copies `len` bytes of the program's memory.
pub fn bytes(address: *const u8, len: usize) -> R<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if address.is_null() || len > isize::MAX as usize {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller promises `len` readable bytes.
    Ok(unsafe { std::slice::from_raw_parts(address, len) }.to_vec())
}

/// Returns a file descriptor that the program passed in place of a pointer. The program still owns the descriptor.
pub fn descriptor(value: *mut c_void) -> R<BorrowedFd<'static>> {
    let fd = c_int::try_from(value.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: not -1; the caller promises that it is open during the call, and nothing keeps it longer.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Calls a function of the program with the argument that the program passed for it.
pub fn call_back(function: unsafe extern "C" fn(*mut c_void), argument: usize) {
    // SAFETY: the program gave this function to be called with this argument.
    unsafe { function(std::ptr::with_exposed_provenance_mut(argument)) }
}
