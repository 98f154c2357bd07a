//! Replay mode: a driver that returns recorded answers, and ends the program at the first call that differs from the
//! recording.
//!
//! `world` provides substitutes for the driver's objects. `mode` selects this module in place of `record`. This module
//! must not call a driver.

mod world;

use self::world::{Made, Tables, follow_context};
use crate::arguments::{Call, described_size};
use crate::arrivals::{Arrivals, Stream, stream_of};
use crate::callbacks::{Callback, Callbacks};
use crate::memory::Area;
use crate::names::Names;
use crate::recording::{self, COVERED, Record, Recording};
use crate::registers::Arguments;
use crate::signature::{Described, Table, Type, place_of};
use crate::threads;
use crate::value::{Value, write_fields};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The exit code of `remotegpu` (cli/exits.py) if the program differs from the recording.
const DIVERGED: i32 = 65;

pub struct Replayer {
    path: PathBuf,
    table: Table,
    recording: Recording,
    state: Mutex<State>,
    callbacks: Arc<Callbacks>,
}

struct State {
    made: Made,
    threads: Vec<Thread>,
    /// The progress of streams, which determines the host functions that a call must wait for.
    arrivals: Arrivals,
}

/// A thread of the recording.
struct Thread {
    name: String,
    /// The indices of the thread's records, without the calls that the driver made itself.
    records: VecDeque<usize>,
    taken: bool,
}

thread_local! {
    /// The number of the recorded thread that this thread replays, from 1. 0 if it has not been chosen.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

impl Replayer {
    pub fn open(path: &Path, table: Table) -> Result<Self, String> {
        let of_file = |error: String| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| of_file(error.to_string()))?;
        let recording = recording::read(&bytes).map_err(of_file)?;
        let mut made = Made::new(table).ok_or_else(|| of_file("no room for handles".into()))?;
        Tables::prepare(&recording, &mut made);
        let mut threads: Vec<Thread> = Vec::new();
        for (place, record) in recording.records.iter().enumerate().filter(|(_, record)| !record.nested) {
            let known = threads.iter().position(|thread| thread.name == record.thread).unwrap_or_else(|| {
                threads.push(Thread { name: record.thread.clone(), records: VecDeque::new(), taken: false });
                threads.len() - 1
            });
            threads[known].records.push_back(place);
        }
        let state = Mutex::new(State { made, threads, arrivals: Arrivals::default() });
        Ok(Self { path: path.into(), table, recording, state, callbacks: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn call(&self, place: usize, arguments: &Arguments) -> u32 {
        let call = Call { function: &self.table[place], arguments, contents: false };
        let mut state = self.lock();
        let thread = self.thread(&call, &mut state);
        let Some(record) = state.threads[thread].records.pop_front().map(|place| &self.recording.records[place]) else {
            self.diverged(&format!(
                "the thread {} made no more calls, but the program {}",
                threads::name(),
                shown(&call, &mut state.made.names)
            ));
        };
        if let Some(difference) = difference(record, &call, &mut state.made.names) {
            let expected = self.text_of(record);
            let actual = shown(&call, &mut state.made.names);
            self.diverged(&format!("record {} is {expected}, but the program {actual} ({difference})", record.number));
        }
        if record.code == 0 {
            let stream = stream_of(&call, threads::number());
            let waits = state.arrivals.follow(&call, stream, 0);
            if !waits.is_empty() {
                drop(state);
                self.callbacks.wait(&waits.iter().map(|it| it.record).collect::<Vec<_>>());
                state = self.lock();
            }
            self.answer(&call, record, stream, &mut state);
        }
        record.code
    }

    /// Writes the recorded outputs of a call to the program's memory, and queues its host functions.
    fn answer(&self, call: &Call, record: &Record, stream: Stream, state: &mut State) {
        let lacking = |what: &str| -> ! {
            self.diverged(&format!("record {} ({}): {what}", record.number, record.function));
        };
        if call.function.parameters.is_none() {
            lacking("the recorder does not know its parameters, so that what it answered was not recorded");
        }
        call.restore(&record.outputs, &mut state.made).unwrap_or_else(|what| lacking(&what));
        if let Some((name, area)) = call.host_target(&state.made.names).filter(|(_, area)| area.bytes() > 0) {
            let data = record.outputs.field("written").or(self.recording.arrived.get(&(record.number, name.into())));
            let bytes = contents(area, data).unwrap_or_else(|what| lacking(&what));
            let copy = move || fill(area, bytes.as_deref());
            // A pending host function may still need the old content, so the write waits in the stream. If nothing is
            // pending, it may happen at once.
            if call.function.is_asynchronous() && !state.arrivals.before(stream).is_empty() {
                self.enqueue(record.number, stream, state, Box::new(copy));
            } else {
                copy();
            }
        }
        // Write the page-locked memory whose new content the program learned of with this call.
        for told in &record.arrived {
            let at = told.field("at").and_then(Value::as_text).and_then(|name| state.made.names.address_of(name));
            let alive = at.and_then(|address| state.made.names.allocation_at(address)).filter(|found| found.hosts);
            if let Some(found) = alive {
                let area = Area::line(found.base, found.bytes);
                let bytes = contents(area, told.field("data")).unwrap_or_else(|what| lacking(&what));
                fill(area, bytes.as_deref());
            }
        }
        call.freed().into_iter().for_each(|base| state.made.free(base));
        let context = call.word(0);
        // SAFETY: the program passed the address, and the driver function writes a context there.
        let answered = || unsafe { crate::memory::word(context, 8) }.unwrap_or(0);
        let gives = matches!(call.function.base(), "cuCtxCreate" | "cuCtxGetCurrent");
        follow_context(call.function.base(), context, if gives { answered() } else { 0 });
        self.call_back(call, record.number, stream, state);
    }

    fn call_back(&self, call: &Call, number: usize, stream: Stream, state: &mut State) {
        for (place, described) in call.function.parameters.unwrap_or_default().iter().enumerate() {
            if let Type::Callback(with_stream) = described.of {
                let [raw, argument] = ["stream", "argument"].map(|name| call.named(name).unwrap_or(0));
                let function = call.word(place) as usize;
                // SAFETY: the program passed the function and its argument for this purpose.
                let run = move || unsafe {
                    if with_stream {
                        std::mem::transmute::<usize, unsafe extern "C" fn(u64, u32, u64)>(function)(raw, 0, argument);
                    } else {
                        std::mem::transmute::<usize, unsafe extern "C" fn(u64)>(function)(argument);
                    }
                };
                self.enqueue(number, stream, state, Box::new(run));
            }
        }
    }

    fn enqueue(&self, number: usize, stream: Stream, state: &mut State, run: Box<dyn FnOnce() + Send>) {
        let after = state.arrivals.before(stream);
        let own = Area::line(u64::MAX - number as u64, 0);
        state.arrivals.expect(stream, number, String::new(), own, 0);
        self.callbacks.add(stream, Callback { number, after, run });
    }

    /// Returns the recorded thread that this thread replays: the one with the same name or, for a thread without a
    /// stable name, the first one whose recording begins with this call.
    fn thread(&self, call: &Call, state: &mut State) -> usize {
        if TAKEN.get() == 0 {
            let State { made, threads, .. } = state;
            let name = threads::name();
            let other = name.starts_with(threads::OTHER);
            let fits = |thread: &Thread, names: &mut Names| {
                let first = thread.records.front().map(|place| &self.recording.records[*place]);
                let mut same = || first.is_some_and(|record| difference(record, call, names).is_none());
                !thread.taken
                    && if other { thread.name.starts_with(threads::OTHER) && same() } else { thread.name == name }
            };
            let Some(found) = threads.iter().position(|thread| fits(thread, &mut made.names)) else {
                let actual = shown(call, &mut made.names);
                self.diverged(&format!("no recorded thread is left for the thread {name}, which {actual}"));
            };
            threads[found].taken = true;
            TAKEN.set(found + 1);
        }
        TAKEN.get() - 1
    }

    fn text_of(&self, record: &Record) -> String {
        let described = place_of(self.table, &record.function).and_then(|place| self.table[place].parameters);
        text_of(&record.function, described, &record.inputs)
    }

    fn diverged(&self, sentence: &str) -> ! {
        stop(DIVERGED, &format!("replay of {}: {sentence}", self.path.display()));
    }

    /// Ends the process with an error if the program ends before it has made all recorded calls.
    pub fn check_end(&self) {
        let Ok(state) = self.state.try_lock() else { return };
        let left = state.threads.iter().filter_map(|thread| thread.records.front()).min();
        if let Some(record) = left.map(|place| &self.recording.records[*place]) {
            let expected = self.text_of(record);
            // SAFETY: flushes all streams of the C library. The process is ending.
            unsafe { libc::fflush(std::ptr::null_mut()) };
            self.diverged(&format!("the program ended before record {}, {expected}", record.number));
        }
    }
}

/// Returns the recorded contents of an area, or `None` if the program could not see them.
fn contents(area: Area, data: Option<&Value>) -> Result<Option<Vec<u8>>, String> {
    if data.and_then(Value::as_text) == Some(COVERED) {
        return Ok(None);
    }
    let bytes = area.bytes();
    match data.and_then(Value::contents) {
        Some(contents) if contents.len() as u64 == bytes => Ok(Some(contents)),
        Some(contents) => Err(format!("it wrote {bytes} bytes, but {} are recorded", contents.len())),
        None => Err(format!(
            "it wrote {bytes} bytes to the program's memory that the recording does not hold; record with --contents"
        )),
    }
}

fn fill(area: Area, contents: Option<&[u8]>) {
    if let Some(contents) = contents {
        // SAFETY: the program passed this memory for output.
        unsafe { area.fill(contents) };
    }
}

/// Returns the difference between a call and its record. If there is none, returns `None` and binds the new names.
fn difference(record: &Record, call: &Call, names: &mut Names) -> Option<String> {
    if record.function != call.function.symbol {
        return Some("another function".into());
    }
    let sizes = record.inputs.field("parameters").map(|all| all.list().iter().map(described_size).collect::<Vec<_>>());
    let inputs = call.inputs(names, &|_| sizes.clone());
    inputs.iter().find_map(|(name, actual)| {
        let expected = record.inputs.field(name).unwrap_or(&Value::Null);
        (!agrees(expected, actual, names)).then(|| format!("`{name}` differs"))
    })
}

fn agrees(expected: &Value, actual: &Value, names: &mut Names) -> bool {
    match (expected, actual) {
        (Value::Text(name), Value::Unnamed(kind, raw)) => names.bind(name, kind, *raw),
        (Value::List(expected), Value::List(actual)) => {
            expected.len() == actual.len() && expected.iter().zip(actual).all(|(e, a)| agrees(e, a, names))
        }
        (Value::Map(_), Value::Map(actual)) => actual
            .iter()
            .all(|(key, actual)| expected.field(key).is_some_and(|expected| agrees(expected, actual, names))),
        _ => expected == actual,
    }
}

fn shown(call: &Call, names: &mut Names) -> String {
    format!(
        "calls {}",
        text_of(call.function.symbol, call.function.parameters, &Value::Map(call.inputs(names, &|_| None)))
    )
}

fn text_of(function: &str, described: Option<&[Described]>, inputs: &Value) -> String {
    const MOST: usize = 240;
    let mut text = String::new();
    let order = |name: &str| described?.iter().position(|p| p.name == name);
    if let Value::Map(fields) = inputs {
        let mut fields = fields.clone();
        fields.sort_by_key(|(name, _)| order(name));
        write_fields(&fields, &mut text);
    }
    let cut = text.char_indices().nth(MOST).map_or(text.len(), |(at, _)| at);
    format!("{function}{}{}", &text[..cut], if cut < text.len() { "..." } else { "" })
}

/// Prints one sentence and ends the process. It does not run the exit handlers of the program, so that it cannot hang.
pub fn stop(code: i32, sentence: &str) -> ! {
    eprintln!("remotegpu: trace: {sentence}");
    // SAFETY: `_exit` never returns.
    unsafe { libc::_exit(code) }
}
