//! C functions that an acceptor calls by ctypes to confine its own process. The process must have one thread at that
//! time.

use crate::calls::{Process, give_up};
use crate::files::{Writable, confine};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const DONE: i32 = 0;
const NO_LANDLOCK: i32 = 1;
const REFUSED: i32 = -1;

/// Returns the caller's bytes as a slice; null gives an empty slice.
///
/// # Safety
/// `start` is null, or `size` bytes are readable there until the slice is dropped.
unsafe fn bytes<'a>(start: *const u8, size: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees it.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, size) } }
}

/// Writes the reason of a refusal, truncated to the buffer's size, with a NUL at the end.
///
/// # Safety
/// `message` is null, or `size` bytes are writable there.
unsafe fn refuse(why: &str, message: *mut u8, size: usize) -> i32 {
    if !message.is_null() && size > 0 {
        let length = why.len().min(size - 1);
        // SAFETY: the caller guarantees the buffer, and `why` is outside of it.
        unsafe {
            std::ptr::copy_nonoverlapping(why.as_ptr(), message, length);
            message.add(length).write(0);
        }
    }
    REFUSED
}

fn paths(joined: &[u8]) -> Vec<PathBuf> {
    let names = joined.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| OsStr::from_bytes(name).into()).collect()
}

/// Calls [`confine`] with lists of paths that are separated by NULs. Returns 0 on success, 1 if this kernel has no
/// Landlock, and -1 on an error, with the reason in `message`.
///
/// # Safety
/// Each pointer is null, or valid for its size during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remotegpu_sandbox_files(
    readable: *const u8,
    readable_size: usize,
    hidden: *const u8,
    hidden_size: usize,
    writable: *const u8,
    writable_size: usize,
    network: bool,
    message: *mut u8,
    message_size: usize,
) -> i32 {
    // SAFETY: the caller guarantees it.
    let readable = paths(unsafe { bytes(readable, readable_size) });
    // SAFETY: the caller guarantees it.
    let (hidden, writable) = unsafe { (paths(bytes(hidden, hidden_size)), paths(bytes(writable, writable_size))) };
    match confine(&readable, &hidden, Writable::Beneath(&writable), network) {
        Ok(true) => DONE,
        Ok(false) => NO_LANDLOCK,
        // SAFETY: the caller guarantees it.
        Err(error) => unsafe { refuse(&format!("Landlock: {error}"), message, message_size) },
    }
}

/// Calls [`give_up`] for a session of offload. Returns 0 on success and -1 on an error, with the reason in `message`.
///
/// # Safety
/// `message` is null, or valid for its size during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remotegpu_sandbox_calls(alone: bool, message: *mut u8, message_size: usize) -> i32 {
    match give_up(Process::Session { alone }) {
        Ok(()) => DONE,
        // SAFETY: the caller guarantees it.
        Err(error) => unsafe { refuse(&format!("seccomp: {error}"), message, message_size) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_separated_by_zeros() {
        assert_eq!(paths(b"/a b\0/c\n\0"), [PathBuf::from("/a b"), PathBuf::from("/c\n")]);
        assert!(paths(b"").is_empty());
    }

    #[test]
    fn a_message_is_cut_to_its_room() {
        let mut room = *b"xxxxxx";
        // SAFETY: the buffer outlives the calls, and no call may write beyond its given size.
        unsafe {
            assert_eq!(refuse("because", room.as_mut_ptr(), 5), REFUSED);
            assert_eq!(refuse("because", std::ptr::null_mut(), 5), REFUSED);
            assert_eq!(refuse("because", room.as_mut_ptr().add(5), 0), REFUSED);
        }
        assert_eq!(&room, b"beca\0x");
    }
}
