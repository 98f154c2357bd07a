//! The statistics that a process which called any function writes to `REMOTEGPU_STATS`: a file, or a folder for files
//! of several processes. The process writes when it ends, and every tenth of a second, since it may end by a signal or
//! `_exit`.

use crate::program::{log, process, sys};
use driverapi::descriptors::apart;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, ptr, thread};

const STATS: &str = "REMOTEGPU_STATS";

/// Calls of one exported function. Counters of functions that were called form a list.
pub struct Counter {
    pub name: &'static str,
    calls: AtomicU64,
    round_trips: AtomicU64,
    next: AtomicPtr<Counter>,
}

static FIRST: AtomicPtr<Counter> = AtomicPtr::new(ptr::null_mut());
static LOCAL_CALLS: AtomicU64 = AtomicU64::new(0);
static COMMANDS: AtomicU64 = AtomicU64::new(0);
static ROUND_TRIPS: AtomicU64 = AtomicU64::new(0);
static BYTES_SENT: AtomicU64 = AtomicU64::new(0);
static BYTES_RECEIVED: AtomicU64 = AtomicU64::new(0);
static BYTES_STRIPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST: Cell<Call> = const { Cell::new(Call { function: None, has_sent: false }) };
}

/// The last call that the program made on this thread.
#[derive(Clone, Copy)]
pub struct Call {
    function: Option<&'static Counter>,
    has_sent: bool,
}

impl Counter {
    pub const fn new(name: &'static str) -> Self {
        Counter {
            name,
            calls: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Counts a call that begins.
    pub fn begin(&'static self) {
        if self.calls.fetch_add(1, Relaxed) == 0 {
            let this = ptr::from_ref(self).cast_mut();
            let mut first = FIRST.load(Relaxed);
            loop {
                self.next.store(first, Relaxed);
                match FIRST.compare_exchange_weak(first, this, std::sync::atomic::Ordering::AcqRel, Relaxed) {
                    Ok(_) => break,
                    Err(other) => first = other,
                }
            }
        }
        let _ = LAST.try_with(|call| call.set(Call { function: Some(self), has_sent: false }));
    }

    /// Counts a call that ends: local if it sent nothing.
    pub fn end(&'static self) {
        if !LAST.try_with(|call| call.get().has_sent).unwrap_or(true) {
            LOCAL_CALLS.fetch_add(1, Relaxed);
        }
    }
}

/// The call that this thread is in.
pub fn call() -> Call {
    LAST.get()
}

/// Counts what this thread does from now on for that call.
pub fn go_on(call: Call) {
    LAST.set(call);
}

/// Notes that the present call sends something; returns the call as it was.
fn note_sent() -> Option<Call> {
    LAST.try_with(|call| call.replace(Call { has_sent: true, ..call.get() })).ok()
}

pub fn command() {
    COMMANDS.fetch_add(1, Relaxed);
    note_sent();
}

pub fn round_trip() {
    ROUND_TRIPS.fetch_add(1, Relaxed);
    if let Some(function) = note_sent().and_then(|call| call.function) {
        function.round_trips.fetch_add(1, Relaxed);
    }
}

pub fn sent(bytes: usize) {
    BYTES_SENT.fetch_add(bytes as u64, Relaxed);
}

pub fn received(bytes: usize) {
    BYTES_RECEIVED.fetch_add(bytes as u64, Relaxed);
}

/// Counts striped bytes, a part of those sent and received.
pub fn striped(bytes: usize) {
    BYTES_STRIPED.fetch_add(bytes as u64, Relaxed);
}

/// Returns the counts by function, without zeros.
fn by_function(count: impl Fn(&Counter) -> &AtomicU64) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    let mut next = FIRST.load(std::sync::atomic::Ordering::Acquire);
    // SAFETY: only `begin` puts counters on the list, and all of them are statics.
    while let Some(counter) = unsafe { next.as_ref() } {
        counts.insert(counter.name, count(counter).load(Relaxed));
        next = counter.next.load(Relaxed);
    }
    counts.retain(|_, count| *count > 0);
    counts
}

/// Whether any function was called.
pub fn is_any() -> bool {
    !FIRST.load(Relaxed).is_null()
}

const EVERY: Duration = Duration::from_millis(100);

/// The report written last; `None` once the final one was written.
static WRITTEN: Mutex<Option<String>> = Mutex::new(Some(String::new()));

/// Writes a report whenever it has changed, if the environment names a place for it.
pub fn keep() {
    let Some(path) = std::env::var_os(STATS).map(PathBuf::from) else { return };
    let kept = sys::spawn("remotegpu-stats", move || {
        loop {
            thread::sleep(EVERY);
            let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(before) = written.as_mut() else { return };
            let report = report();
            if *before != report {
                write(&path, &report);
                *before = report;
            }
        }
    });
    if let Err(error) = kept {
        log::error(&format!("statistics of a process that is killed are lost: no thread: {error}"));
    }
}

/// Writes the last report.
pub fn write_last() {
    // `remotegpu-run` has the file's name too, and calls nothing: it leaves the file to its command.
    if let (Some(path), true) = (std::env::var_os(STATS), is_any()) {
        let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
        *written = None;
        write(Path::new(&path), &report());
    }
}

/// Writes a report: a folder gets a file for each process; a file keeps the report of a program's last process.
fn write(path: &Path, report: &str) {
    let file = if path.is_dir() { path.join(format!("{}.json", std::process::id())) } else { path.to_owned() };
    let open = || fs::OpenOptions::new().write(true).create(true).truncate(false).open(&file);
    let written = apart(open).and_then(|mut file| {
        writeln!(file, "{report}")?;
        // Last, so that a process which is killed meanwhile leaves a report.
        if file.metadata()?.is_file() { file.set_len(report.len() as u64 + 1) } else { Ok(()) }
    });
    if let Err(error) = written {
        log::error(&format!("cannot write the statistics to {}: {error}", file.display()));
    }
}

/// The report as one JSON object.
fn report() -> String {
    let calls = by_function(|counter| &counter.calls);
    serde_json::json!({
        "pid": std::process::id(),
        "process": process::name(),
        "calls": calls.values().sum::<u64>(),
        "local_calls": LOCAL_CALLS.load(Relaxed),
        "commands": COMMANDS.load(Relaxed),
        "round_trips": ROUND_TRIPS.load(Relaxed),
        "bytes_sent": BYTES_SENT.load(Relaxed),
        "bytes_received": BYTES_RECEIVED.load(Relaxed),
        "bytes_striped": BYTES_STRIPED.load(Relaxed),
        "functions": calls,
        "round_trips_of": by_function(|counter| &counter.round_trips),
    })
    .to_string()
}
