//! The life of this library in a process: fresh, initialised, a forked child of an initialised process, gone.

use crate::Code;
use crate::program::{stats, sys};
use crate::{connect, session};
use driverapi::errors::{CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED};
use driverapi::forks::Owner;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
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

/// Sockets that a forked child must close without sending anything: the session is its parent's.
static SOCKETS: [AtomicI32; 32] = [const { AtomicI32::new(-1) }; 32];

/// Whether the library is initialised, by this very process. Most calls find it so.
#[inline]
fn is_ready() -> bool {
    STATE.load(SeqCst) == INITIALISED && !OWNER.is_parent()
}

/// Checks that calls may be answered at all.
pub fn check_alive() -> Result<(), Code> {
    match state() {
        FORKED => Err(CUDA_ERROR_NOT_INITIALIZED),
        GONE => Err(CUDA_ERROR_DEINITIALIZED),
        _ => Ok(()),
    }
}

/// Checks that calls may be answered that need no `cuInit`, such as a forked child's.
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

/// Identifies this process: the boot of its machine, its PID namespace, and when it started. It stays the same through
/// exec. An appliance on the same machine can see when such a process has ended. None where /proc does not say.
pub fn identity() -> Option<String> {
    let errno = sys::errno();
    let found = read_identity();
    sys::set_errno(errno);
    found
}

fn read_identity() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let start = stat_of("self")?.start;
    Some(format!("{} {} {start}", boot.trim(), namespace.to_str()?))
}

/// Whether the process with this number and this identity has ended. Known only within this process's own PID
/// namespace.
pub fn has_ended(pid: u32, identity: &str) -> bool {
    let errno = sys::errno();
    let ended = is_gone(pid, identity).unwrap_or(false);
    sys::set_errno(errno);
    ended
}

fn is_gone(pid: u32, identity: &str) -> Option<bool> {
    let ours = read_identity()?;
    let ((here, _), (there, start)) = (ours.rsplit_once(' ')?, identity.rsplit_once(' ')?);
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    if here != there {
        return None;
    }
    if test_kill_process(number) == Err(Errno::SRCH) {
        return Some(true);
    }
    // A /proc may show another namespace, whose numbers differ, or may hide other users' processes.
    if fs::read_link("/proc/self").ok()?.to_str()? != std::process::id().to_string() {
        return None;
    }
    let now = stat_of(&pid.to_string())?;
    Some(now.start != start || (now.state == "Z" && fs::read_dir(format!("/proc/{pid}/task")).ok()?.count() < 2))
}

struct Stat {
    state: String,
    start: String,
}

/// Returns the third and the 22nd of the fields behind the program's name, which is in brackets and may have any bytes
/// (proc_pid_stat(5)).
fn stat_of(pid: &str) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = String::from_utf8_lossy(&stat[behind..]).into_owned();
    let field = |number: usize| fields.split_whitespace().nth(number - 3).map(str::to_owned);
    Some(Stat { state: field(3)?, start: field(22)? })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn identity_of(pid: u32) -> String {
        let ours = identity().expect("known here");
        let (place, _) = ours.rsplit_once(' ').expect("three parts");
        format!("{place} {}", stat_of(&pid.to_string()).expect("it lives").start)
    }

    #[test]
    fn a_process_has_ended_when_it_is_gone_or_waits_to_be_reaped() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("started");
        let (pid, who) = (child.id(), identity_of(child.id()));
        assert!(!has_ended(pid, &who));
        child.kill().expect("killed");
        while !has_ended(pid, &who) {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        assert!(has_ended(pid, &who));
    }

    #[test]
    fn a_number_that_another_process_has_now_is_no_life() {
        let ours = identity_of(std::process::id());
        let (place, start) = ours.rsplit_once(' ').expect("three parts");
        assert!(!has_ended(std::process::id(), &ours));
        assert!(has_ended(std::process::id(), &format!("{place} {start}0")));
    }

    #[test]
    fn nothing_is_known_of_other_places() {
        let ours = identity_of(std::process::id());
        for other in ["", "1", "no such boot pid:[1] 1", &ours.replace("pid:[", "pid:[1")] {
            assert!(!has_ended(u32::MAX, other) && !has_ended(4_000_000, other), "{other}");
        }
    }
}
