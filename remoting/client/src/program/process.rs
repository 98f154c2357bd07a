//! The life of this library in a process: fresh, initialised, a forked child of an initialised process, gone.

use crate::Code;
use crate::program::{stats, sys};
use crate::{connect, session};
use driverapi::errors::{CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED};
use driverapi::forks::Owner;
use std::fs;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::SeqCst};

const FRESH: u8 = 0;
const INITIALISED: u8 = 1;
const FORKED: u8 = 2;
const GONE: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(FRESH);

/// The process that is initialised.
static OWNER: Owner = Owner::nobody();

/// Sockets that a forked child must close without a word: the session is its parent's.
static SOCKETS: [AtomicI32; 32] = [const { AtomicI32::new(-1) }; 32];

/// Is the library initialised, by this very process? So most calls find it.
#[inline]
fn is_ready() -> bool {
    STATE.load(SeqCst) == INITIALISED && !OWNER.is_parent()
}

/// May calls be answered at all?
pub fn check_alive() -> Result<(), Code> {
    match state() {
        FORKED => Err(CUDA_ERROR_NOT_INITIALIZED),
        GONE => Err(CUDA_ERROR_DEINITIALIZED),
        _ => Ok(()),
    }
}

/// May calls be answered that need no `cuInit`, as a forked child's?
pub fn check_not_gone() -> Result<(), Code> {
    if state() == GONE { Err(CUDA_ERROR_DEINITIALIZED) } else { Ok(()) }
}

/// Was `cuInit` called?
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
        stats::keep();
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
    for socket in ours.chain(connect::open_fds()) {
        // SAFETY: the descriptor is this child's copy of a session's socket; nothing here uses it any more.
        unsafe { libc::close(socket) };
    }
}

/// Runs when the process ends or the library is unloaded, after the handlers of the program.
extern "C" fn finish() {
    // A child that was made without the C library's handlers may have its parent's state, or even its memory.
    if OWNER.is_other() {
        return;
    }
    let before = STATE.swap(GONE, SeqCst);
    if before == FORKED || before == GONE {
        return;
    }
    let _ = std::panic::catch_unwind(|| {
        session::say_goodbye();
        stats::write_last();
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// Which process this is: the boot of its machine, its PID namespace, and when it started. It stays the same through exec. An
/// appliance on the same machine can see when such a process has ended. None where /proc does not say.
pub fn identity() -> Option<String> {
    let errno = sys::errno();
    let found = read_identity();
    sys::set_errno(errno);
    found
}

fn read_identity() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let stat = fs::read("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may have any bytes. The start is the field 22 (proc_pid_stat(5)).
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = String::from_utf8_lossy(&stat[behind..]).into_owned();
    let start = fields.split_whitespace().nth(22 - 3)?;
    Some(format!("{} {} {start}", boot.trim(), namespace.to_str()?))
}

/// The name of the program, for the appliance's lists.
pub fn name() -> String {
    let errno = sys::errno();
    let command = fs::read("/proc/self/cmdline").unwrap_or_default();
    sys::set_errno(errno);
    let words: Vec<_> = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let text = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
    text.chars().take(200).collect()
}
