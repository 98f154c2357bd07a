//! The state of this library in a process: fresh, initialised, in a forked child of an initialised process, or gone.

use crate::Code;
use crate::program::{descriptors, report};
use driverapi::errors::{CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED};
use driverapi::forks::Owner;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::SeqCst};

const FRESH: u8 = 0;
const INITIALISED: u8 = 1;
const FORKED: u8 = 2;
const GONE: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(FRESH);

/// The process that initialised the library.
static OWNER: Owner = Owner::nobody();

/// Sockets that a forked child must close without sending anything, because the session belongs to its parent.
static SOCKETS: [AtomicI32; 32] = [const { AtomicI32::new(-1) }; 32];

/// Returns whether this process has initialised the library. This is the fast path of most calls.
#[inline]
fn is_ready() -> bool {
    STATE.load(SeqCst) == INITIALISED && !OWNER.is_parent()
}

/// Checks that calls may be made at all: the library is not gone, and this process is not a forked child.
pub fn check_alive() -> Result<(), Code> {
    match state() {
        FORKED => Err(CUDA_ERROR_NOT_INITIALIZED),
        GONE => Err(CUDA_ERROR_DEINITIALIZED),
        _ => Ok(()),
    }
}

/// Checks that the library is not gone. A forked child may make such calls.
pub fn check_not_gone() -> Result<(), Code> {
    if state() == GONE { Err(CUDA_ERROR_DEINITIALIZED) } else { Ok(()) }
}

/// Checks that `cuInit` was called.
#[inline]
pub fn check_initialised() -> Result<(), Code> {
    if is_ready() { Ok(()) } else { Err(why_not_ready()) }
}

#[cold]
fn why_not_ready() -> Code {
    if state() == GONE { CUDA_ERROR_DEINITIALIZED } else { CUDA_ERROR_NOT_INITIALIZED }
}

fn state() -> u8 {
    let state = STATE.load(SeqCst);
    if state == INITIALISED && OWNER.is_parent() {
        // SAFETY: takes atomics and numbers only.
        unsafe { forked() };
        return FORKED;
    }
    state
}

pub fn set_initialised() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        OWNER.take();
        // SAFETY: `forked` only does what is allowed between fork and exec (atomics, close).
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        report::keep();
    });
    let _ = STATE.compare_exchange(FRESH, INITIALISED, SeqCst, SeqCst);
}

pub fn close_in_children(socket: RawFd) {
    for slot in &SOCKETS {
        if slot.compare_exchange(-1, socket, SeqCst, SeqCst).is_ok() {
            return;
        }
    }
}

unsafe extern "C" fn forked() {
    STATE.store(FORKED, SeqCst);
    let ours = SOCKETS.iter().map(|slot| slot.swap(-1, SeqCst)).filter(|socket| *socket >= 0);
    for socket in ours.chain(descriptors::open_fds()) {
        // SAFETY: the descriptor is this child's copy of a session's socket; nothing here uses it any more.
        unsafe { libc::close(socket) };
    }
}

/// Marks the library as gone. Returns whether this process may still use its sessions.
pub fn end() -> bool {
    // A child that was created without the C library's fork handlers may have its parent's state, or even share its
    // memory.
    if OWNER.is_other() {
        return false;
    }
    let before = STATE.swap(GONE, SeqCst);
    before != FORKED && before != GONE
}
