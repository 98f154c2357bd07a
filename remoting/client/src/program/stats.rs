//! Counters of calls of exported functions, and of the commands, round trips and bytes that this process has sent.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

/// A counter for one exported function. The counters of functions that were called form a list.
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

/// The last call of the program on this thread.
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

    /// Counts the beginning of a call.
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

    /// Counts the end of a call. The call is local if it sent nothing.
    pub fn end(&'static self) {
        if !LAST.try_with(|call| call.get().has_sent).unwrap_or(true) {
            LOCAL_CALLS.fetch_add(1, Relaxed);
        }
    }
}

/// Returns the current call of this thread.
pub fn call() -> Call {
    LAST.get()
}

/// Returns the name of the last function that the program called on this thread.
pub fn function() -> Option<&'static str> {
    call().function.map(|counter| counter.name)
}

/// Attributes this thread's later work to `call`.
pub fn go_on(call: Call) {
    LAST.set(call);
}

/// Records that the current call has sent something. Returns the call in its previous state.
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

/// Counts bytes that stripes transferred. They are included in the sent and received bytes.
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

/// Returns whether any function was called.
pub fn is_any() -> bool {
    !FIRST.load(Relaxed).is_null()
}

/// Returns the counts of this process as one JSON object. `process` is the name of the process.
pub fn report(process: &str) -> String {
    let calls = by_function(|counter| &counter.calls);
    serde_json::json!({
        "pid": std::process::id(),
        "process": process,
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
