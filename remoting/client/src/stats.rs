//! What a process writes to `REMOTEGPU_STATS` when it ends: a file, or a folder for files of several processes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

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

thread_local! {
    /// Has the call that runs now sent anything?
    static SENT: Cell<bool> = const { Cell::new(false) };
    /// The function that the program called last.
    static CALLED: Cell<Option<&'static Counter>> = const { Cell::new(None) };
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
        let _ = SENT.try_with(|sent| sent.set(false));
        let _ = CALLED.try_with(|called| called.set(Some(self)));
    }

    /// Counts a call that ends: local if it sent nothing.
    pub fn end(&'static self) {
        if !SENT.try_with(Cell::get).unwrap_or(true) {
            LOCAL_CALLS.fetch_add(1, Relaxed);
        }
    }
}

pub fn command() {
    COMMANDS.fetch_add(1, Relaxed);
    let _ = SENT.try_with(|sent| sent.set(true));
}

pub fn round_trip() {
    ROUND_TRIPS.fetch_add(1, Relaxed);
    if let Ok(Some(counter)) = CALLED.try_with(Cell::get) {
        counter.round_trips.fetch_add(1, Relaxed);
    }
    let _ = SENT.try_with(|sent| sent.set(true));
}

pub fn sent(bytes: usize) {
    BYTES_SENT.fetch_add(bytes as u64, Relaxed);
}

pub fn received(bytes: usize) {
    BYTES_RECEIVED.fetch_add(bytes as u64, Relaxed);
}

/// Calls and round trips of each function that was called.
fn functions() -> BTreeMap<&'static str, (u64, u64)> {
    let mut counts = BTreeMap::new();
    let mut next = FIRST.load(std::sync::atomic::Ordering::Acquire);
    // SAFETY: only `begin` puts counters on the list, and all of them are statics.
    while let Some(counter) = unsafe { next.as_ref() } {
        counts.insert(counter.name, (counter.calls.load(Relaxed), counter.round_trips.load(Relaxed)));
        next = counter.next.load(Relaxed);
    }
    counts
}

/// The report as one JSON object.
pub fn report() -> String {
    let functions = functions();
    let calls: BTreeMap<_, _> = functions.iter().map(|(name, (calls, _))| (name, calls)).collect();
    let waited: BTreeMap<_, _> =
        functions.iter().filter(|(_, (_, trips))| *trips > 0).map(|(name, (_, trips))| (name, trips)).collect();
    serde_json::json!({
        "calls": calls.values().copied().sum::<u64>(),
        "local_calls": LOCAL_CALLS.load(Relaxed),
        "commands": COMMANDS.load(Relaxed),
        "round_trips": ROUND_TRIPS.load(Relaxed),
        "bytes_sent": BYTES_SENT.load(Relaxed),
        "bytes_received": BYTES_RECEIVED.load(Relaxed),
        "functions": calls,
        "round_trips_of": waited,
    })
    .to_string()
}
