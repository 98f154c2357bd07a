//! The mode of this process, chosen at the first call: record calls, replay a recording, or pass calls on to the
//! driver.

use crate::below::Below;
use crate::record::Recorder;
use crate::registers::Arguments;
use crate::replay::{Replayer, stop};
use crate::signature::Table;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

enum Mode {
    Record(Box<Recorder>),
    Replay(Box<Replayer>),
    /// Calls go to the driver unchanged, because no environment variable selects another mode.
    Pass(Below),
}

/// The exit code of `remotegpu` (cli/exits.py) if this library cannot start.
const SOFTWARE: i32 = 70;

static MODE: AtomicPtr<Mode> = AtomicPtr::new(ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());

pub fn call(table: Table, place: usize, arguments: &Arguments) -> u32 {
    match mode(table) {
        Mode::Record(recorder) => recorder.call(place, arguments),
        Mode::Replay(replayer) => replayer.call(place, arguments),
        Mode::Pass(below) => below.forward(place, arguments),
    }
}

fn mode(table: Table) -> &'static Mode {
    let known = MODE.load(Ordering::Acquire);
    // SAFETY: the pointer is null or was leaked by `start`.
    unsafe { known.as_ref() }.unwrap_or_else(|| start(table))
}

fn start(table: Table) -> &'static Mode {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the pointer is null or was leaked by `start`. Another thread may have called `start` first.
    if let Some(known) = unsafe { MODE.load(Ordering::Acquire).as_ref() } {
        return known;
    }
    let mode: &'static Mode = Box::leak(Box::new(choose(table).unwrap_or_else(|sentence| stop(SOFTWARE, &sentence))));
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    MODE.store(ptr::from_ref(mode).cast_mut(), Ordering::Release);
    mode
}

/// Resets the mode in a forked process. The next call in this process chooses the mode again and opens the file that
/// [`of_process`] returns.
extern "C" fn in_child() {
    MODE.store(ptr::null_mut(), Ordering::Release);
}

fn choose(table: Table) -> Result<Mode, String> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(file) = variable("REMOTEGPU_TRACE_REPLAY") {
        return Ok(Mode::Replay(Box::new(Replayer::open(&of_process(file), table)?)));
    }
    let below = Below::open(table)?;
    let Some(file) = variable("REMOTEGPU_TRACE_RECORD") else { return Ok(Mode::Pass(below)) };
    let [contents, times] =
        ["REMOTEGPU_TRACE_CONTENTS", "REMOTEGPU_TRACE_TIMES"].map(|it| std::env::var_os(it).is_some());
    Ok(Mode::Record(Box::new(Recorder::create(&of_process(file), below, contents, times)?)))
}

/// Returns the file of this process. If `REMOTEGPU_TRACE_CLAIMS` is set, the first process that calls the driver uses
/// the given name, and each later process appends a number of its own. Otherwise all processes use the given name.
fn of_process(file: PathBuf) -> PathBuf {
    let Some(claims) = std::env::var_os("REMOTEGPU_TRACE_CLAIMS") else { return file };
    let free = |number: &usize| match std::fs::create_dir(Path::new(&claims).join(number.to_string())) {
        Ok(()) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AlreadyExists,
    };
    match (1..).find(free) {
        None | Some(1) => file,
        Some(number) => PathBuf::from(format!("{}.{number}", file.display())),
    }
}

extern "C" fn at_end() {
    // SAFETY: the pointer is null or was leaked by `start`.
    match unsafe { MODE.load(Ordering::Acquire).as_ref() } {
        Some(Mode::Record(recorder)) => recorder.close(),
        Some(Mode::Replay(replayer)) => replayer.check_end(),
        _ => {}
    }
}

/// A function that runs at the end of the process, after the exit handlers of the program, because these may still call
/// the driver.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
