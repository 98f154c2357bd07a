//! Functions that an acceptor calls, by ctypes, in the process that confines itself. It has one thread then.

use crate::calls::{Process, give_up};
use crate::files::{Writable, confine};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const DONE: i32 = 0;
const NO_LANDLOCK: i32 = 1;
const REFUSED: i32 = -1;

/// Bytes of the caller; null gives none.
///
/// # Safety
/// `size` bytes can be read there until the slice is dropped.
unsafe fn bytes<'a>(start: *const u8, size: usize) -> &'a [u8] {
    // SAFETY: as promised by the caller.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, size) } }
}

/// Writes the reason of a refusal, cut to the buffer's size, with a zero at the end.
///
/// # Safety
/// `size` bytes can be written there, or it is null.
unsafe fn refuse(why: &str, message: *mut u8, size: usize) -> i32 {
    if !message.is_null() && size > 0 {
        let length = why.len().min(size - 1);
        // SAFETY: as promised by the caller; `why` is not its buffer.
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

/// [`confine`] with paths that are separated by zeros. 0: done; 1: this kernel has no Landlock; -1: `message` says why not.
///
/// # Safety
/// Each pointer has that many bytes during the call, or is null.
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
    // SAFETY: as promised by the caller.
    let readable = paths(unsafe { bytes(readable, readable_size) });
    // SAFETY: as promised by the caller.
    let (hidden, writable) = unsafe { (paths(bytes(hidden, hidden_size)), paths(bytes(writable, writable_size))) };
    match confine(&readable, &hidden, Writable::Beneath(&writable), network) {
        Ok(true) => DONE,
        Ok(false) => NO_LANDLOCK,
        // SAFETY: as promised by the caller.
        Err(error) => unsafe { refuse(&format!("Landlock: {error}"), message, message_size) },
    }
}

/// [`give_up`] for a session of offload. 0: done; -1: `message` says why not.
///
/// # Safety
/// `message` has that many bytes during the call, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remotegpu_sandbox_calls(alone: bool, message: *mut u8, message_size: usize) -> i32 {
    match give_up(Process::Session { alone }) {
        Ok(()) => DONE,
        // SAFETY: as promised by the caller.
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
        // SAFETY: the buffer lives longer than the calls, and no call may write beyond it.
        unsafe {
            assert_eq!(refuse("because", room.as_mut_ptr(), 5), REFUSED);
            assert_eq!(refuse("because", std::ptr::null_mut(), 5), REFUSED);
            assert_eq!(refuse("because", room.as_mut_ptr().add(5), 0), REFUSED);
        }
        assert_eq!(&room, b"beca\0x");
    }
}
