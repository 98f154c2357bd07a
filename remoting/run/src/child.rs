//! Runs the user's command. Signals, stops and the exit code are passed through, as in `remotegpu.cli.run.child`.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libc::{c_int, pid_t, sigset_t};

use crate::environment::Environment;
use crate::exits::{Failure, NOT_EXECUTABLE, NOT_FOUND, reason};

const FORWARDED: [c_int; 9] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];
const ENDING: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// `si_code` of a signal from the kernel, for example Ctrl-C. The terminal has already sent it to the whole process
/// group.
const FROM_KERNEL: c_int = 0x80;

pub enum Ended {
    Code(i32),
    Signal(i32),
}

/// Blocked signals, which this process waits for. The command starts with the original signal mask.
pub struct Signals {
    before: sigset_t,
    /// True once standard input has ended, if its end is a request to stop.
    input_ended: Arc<AtomicBool>,
}

impl Signals {
    /// Blocks the signals. Call this before any thread starts, so that all threads inherit the mask.
    pub fn block() -> Self {
        let blocked = set(FORWARDED.into_iter().chain([libc::SIGCHLD]));
        let mut before = MaybeUninit::uninit();
        // SAFETY: pthread_sigmask fills `before`; it cannot fail, because the arguments are valid.
        let before = unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, before.as_mut_ptr());
            before.assume_init()
        };
        Signals { before, input_ended: Arc::default() }
    }

    /// Treats the end of standard input as a request to stop. The program that uses the share holds the other end.
    pub fn end_with_input(&self) {
        let ended = Arc::clone(&self.input_ended);
        thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            ended.store(true, Ordering::Release);
        });
    }

    /// Whether standard input has ended. Always false without `end_with_input`.
    pub fn has_input_ended(&self) -> bool {
        self.input_ended.load(Ordering::Acquire)
    }

    /// Returns a received signal that requests an end, without blocking. The caller polls this until the command runs.
    pub fn ending(&self) -> Option<i32> {
        let (wanted, at_once) = (set(ENDING), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: sigtimedwait reads a set and a time, and accepts a null pointer for the information.
        let number = unsafe { libc::sigtimedwait(&raw const wanted, ptr::null_mut(), &raw const at_once) };
        let ended = || self.has_input_ended().then_some(libc::SIGTERM);
        (number > 0).then_some(number).or_else(ended)
    }

    /// Blocks until a signal arrives. Returns its number, and whether the kernel sent it.
    fn next(&self) -> (c_int, bool) {
        let wanted = set(FORWARDED.into_iter().chain([libc::SIGCHLD]));
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: sigwaitinfo reads the set and fills `info` if it returns a signal; an all-zero `siginfo_t` is
            // valid, too.
            let (number, code) =
                unsafe { (libc::sigwaitinfo(&raw const wanted, info.as_mut_ptr()), info.assume_init_ref().si_code) };
            // A stop and the continuation after it interrupt the call.
            if number > 0 {
                return (number, code == FROM_KERNEL);
            }
        }
    }
}

fn set(numbers: impl IntoIterator<Item = c_int>) -> sigset_t {
    let mut made = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set before a signal is added.
    unsafe {
        libc::sigemptyset(made.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(made.as_mut_ptr(), number);
        }
        made.assume_init()
    }
}

pub fn find(name: &OsStr, search_path: &OsStr) -> Result<PathBuf, Failure> {
    let runs =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let found = if name.as_bytes().contains(&b'/') {
        Some(PathBuf::from(name)).filter(runs)
    } else {
        std::env::split_paths(search_path).map(|folder| folder.join(Path::new(name))).find(runs)
    };
    found.filter(|_| !name.is_empty()).ok_or_else(|| {
        let message = format!("the command '{}' was not found; is it installed and on PATH?", name.to_string_lossy());
        Failure::new(NOT_FOUND, message)
    })
}

pub fn run(
    command: &[OsString],
    search_path: &OsStr,
    environment: &Environment,
    signals: &Signals,
) -> Result<Ended, Failure> {
    let path = find(&command[0], search_path)?;
    let pid = spawn(&path, command, environment, signals).map_err(|error| {
        let name = command[0].to_string_lossy();
        Failure::new(NOT_EXECUTABLE, format!("the command '{name}' cannot be run: {}", reason(&error)))
    })?;
    loop {
        let (number, from_kernel) = signals.next();
        if number != libc::SIGCHLD {
            if !from_kernel {
                send(pid, number);
            }
            continue;
        }
        let mut status = 0;
        // SAFETY: waitpid fills `status`; the child is ours and no other code waits for it.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::WUNTRACED) } != pid {
            continue;
        }
        if libc::WIFSTOPPED(status) {
            // Stop this process as well, so that the shell takes the terminal back. When the shell continues this
            // process, continue the command.
            send(std::process::id().cast_signed(), libc::SIGSTOP);
            send(pid, libc::SIGCONT);
        } else if libc::WIFSIGNALED(status) {
            return Ok(Ended::Signal(libc::WTERMSIG(status)));
        } else {
            return Ok(Ended::Code(libc::WEXITSTATUS(status)));
        }
    }
}

fn send(pid: pid_t, number: c_int) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(pid, number) };
}

fn spawn(path: &Path, command: &[OsString], environment: &Environment, signals: &Signals) -> io::Result<pid_t> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let words = command.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let variable =
        |(name, value): &(OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    let variables = environment.iter().map(variable).collect::<Result<Vec<_>, _>>()?;
    let (words, variables) = (pointers(&words), pointers(&variables));
    // Rust ignores SIGPIPE, and Python, if it started this process, SIGXFSZ. The command must get the defaults.
    let default = set([libc::SIGPIPE, libc::SIGXFSZ]);
    let flags = (libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF) as libc::c_short;
    let (mut pid, mut attributes) = (0, MaybeUninit::uninit());
    // SAFETY: the attributes are initialised first and destroyed at the end; strings and arrays outlive the call.
    let error = unsafe {
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        libc::posix_spawnattr_setsigmask(attributes.as_mut_ptr(), &raw const signals.before);
        libc::posix_spawnattr_setsigdefault(attributes.as_mut_ptr(), &raw const default);
        libc::posix_spawnattr_setflags(attributes.as_mut_ptr(), flags);
        let error = libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            ptr::null(),
            attributes.as_ptr(),
            words.as_ptr(),
            variables.as_ptr(),
        );
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        error
    };
    if error == 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Returns an array of pointers that ends with null. The pointers are valid as long as the strings are.
fn pointers(strings: &[CString]) -> Vec<*mut c_char> {
    strings.iter().map(|text| text.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

/// Kills this process by the signal that ended the command. Returns an exit code if the process survives.
pub fn die_of(number: i32) -> i32 {
    let (unblocked, no_core) = (set([number]), libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    // SAFETY: takes numbers, a limit and a set.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        libc::signal(number, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const unblocked, ptr::null_mut());
        libc::kill(libc::getpid(), number);
    }
    128 + number
}
