//! Replay: a driver that answers as recorded, and ends the program where it does otherwise.

use crate::arguments::{Call, described_size};
use crate::below::place_of;
use crate::functions_generated::FUNCTIONS;
use crate::memory::Area;
use crate::mode::{DIVERGED, stop};
use crate::names::Names;
use crate::recording::{self, Record, Recording};
use crate::replay_world::{Made, Tables, follow_context};
use crate::signature::Type;
use crate::stub::Arguments;
use crate::value::{Value, write_fields};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub struct Replayer {
    path: PathBuf,
    recording: Recording,
    state: Mutex<State>,
    callbacks: Arc<Callbacks>,
}

struct State {
    made: Made,
    threads: Vec<Thread>,
}

/// One recorded thread.
struct Thread {
    /// Places of its records, without those that the driver made itself.
    records: VecDeque<usize>,
    taken: bool,
}

thread_local! {
    /// Which recorded thread this one is, from 1.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

impl Replayer {
    pub fn open(path: &Path) -> Result<Self, String> {
        let of_file = |error: String| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| of_file(error.to_string()))?;
        let recording = recording::read(&bytes).map_err(of_file)?;
        let mut made = Made::new().ok_or_else(|| of_file("no room for handles".into()))?;
        Tables::prepare(&recording, &mut made);
        let mut threads: Vec<(u64, Thread)> = Vec::new();
        for (place, record) in recording.records.iter().enumerate().filter(|(_, record)| !record.nested) {
            let known = threads.iter().position(|(number, _)| *number == record.thread).unwrap_or_else(|| {
                threads.push((record.thread, Thread { records: VecDeque::new(), taken: false }));
                threads.len() - 1
            });
            threads[known].1.records.push_back(place);
        }
        let state = Mutex::new(State { made, threads: threads.into_iter().map(|(_, thread)| thread).collect() });
        Ok(Self { path: path.into(), recording, state, callbacks: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn call(&self, place: usize, arguments: &Arguments) -> u32 {
        let call = Call { function: &FUNCTIONS[place], arguments, contents: false };
        let mut state = self.lock();
        let thread = self.thread(&call, &mut state);
        let Some(record) = state.threads[thread].records.pop_front().map(|place| &self.recording.records[place]) else {
            self.diverged(&format!(
                "this thread made no more calls, but the program {}",
                shown(&call, &mut state.made.names)
            ));
        };
        if let Some(difference) = difference(record, &call, &mut state.made.names) {
            let expected = text_of(&record.function, &record.inputs);
            let actual = shown(&call, &mut state.made.names);
            self.diverged(&format!("record {} is {expected}, but the program {actual} ({difference})", record.number));
        }
        if record.code == 0 && WAITS.contains(&call.function.base()) {
            drop(state);
            self.callbacks.wait();
            state = self.lock();
        }
        if record.code == 0 {
            self.answer(&call, record, &mut state);
        }
        record.code
    }

    /// Gives the program what it was given then.
    fn answer(&self, call: &Call, record: &Record, state: &mut State) {
        let lacking = |what: &str| -> ! {
            self.diverged(&format!("record {} ({}): {what}", record.number, record.function));
        };
        if call.function.parameters.is_none() {
            lacking("the recorder does not know its parameters, so that what it answered was not recorded");
        }
        call.restore(&record.outputs, &mut state.made).unwrap_or_else(|what| lacking(&what));
        if let Some((name, area)) = call.host_target(&state.made.names).filter(|(_, area)| area.bytes() > 0) {
            let data = record.outputs.field("written").or(self.recording.arrived.get(&(record.number, name.into())));
            fill(area, data).unwrap_or_else(|what| lacking(&what));
        }
        for told in &record.arrived {
            let at = told.field("at").and_then(Value::as_text).and_then(|name| state.made.names.address_of(name));
            if let Some(found) = at.and_then(|address| state.made.names.allocation_at(address)) {
                let area = Area::line(found.base, found.bytes);
                fill(area, told.field("data")).unwrap_or_else(|what| lacking(&what));
            }
        }
        call.freed().into_iter().for_each(|base| state.made.free(base));
        let context = call.word(0);
        // SAFETY: where the program has its answer, if the function gives one.
        let answered = || unsafe { crate::memory::word(context, 8) }.unwrap_or(0);
        let gives = matches!(call.function.base(), "cuCtxCreate" | "cuCtxGetCurrent");
        follow_context(call.function.base(), context, if gives { answered() } else { 0 });
        self.call_back(call);
    }

    /// Runs the program's host functions as a stream does: in order, on a thread that is not the program's.
    fn call_back(&self, call: &Call) {
        for (place, described) in call.function.parameters.unwrap_or_default().iter().enumerate() {
            if let Type::Callback(with_stream) = described.of {
                let stream = call.named("stream").unwrap_or(0);
                let argument = call.named("argument").unwrap_or(0);
                self.callbacks.add(Callback { function: call.word(place), with_stream, stream, argument });
            }
        }
    }

    /// Which recorded thread makes this call: a new one is the first whose first call this is.
    fn thread(&self, call: &Call, state: &mut State) -> usize {
        if TAKEN.get() == 0 {
            let State { made, threads } = state;
            let first = |thread: &Thread| thread.records.front().map(|place| &self.recording.records[*place]);
            let fits = |thread: &Thread, names: &mut Names| {
                !thread.taken && first(thread).is_some_and(|record| difference(record, call, names).is_none())
            };
            let found = threads.iter().position(|thread| fits(thread, &mut made.names));
            // Whichever is next then says what it expected.
            let Some(found) = found.or_else(|| threads.iter().position(|thread| !thread.taken)) else {
                let actual = shown(call, &mut made.names);
                self.diverged(&format!("there were {} threads, but one more {actual}", threads.len()));
            };
            threads[found].taken = true;
            TAKEN.set(found + 1);
        }
        TAKEN.get() - 1
    }

    fn diverged(&self, sentence: &str) -> ! {
        stop(DIVERGED, &format!("replay of {}: {sentence}", self.path.display()));
    }

    /// When the program ends: has it made all calls?
    pub fn check_end(&self) {
        let Ok(state) = self.state.try_lock() else { return };
        let left = state.threads.iter().filter_map(|thread| thread.records.front()).min();
        if let Some(record) = left.map(|place| &self.recording.records[*place]) {
            let expected = text_of(&record.function, &record.inputs);
            // SAFETY: all of C's streams; the process is in its end.
            unsafe { libc::fflush(std::ptr::null_mut()) };
            self.diverged(&format!("the program ended before record {}, {expected}", record.number));
        }
    }
}

fn fill(area: Area, data: Option<&Value>) -> Result<(), String> {
    let contents = data.and_then(Value::contents).ok_or_else(|| {
        let bytes = area.bytes();
        format!(
            "it wrote {bytes} bytes to the program's memory that the recording does not hold; record with --contents"
        )
    })?;
    // SAFETY: the program has passed this memory to be written.
    let filled = unsafe { area.fill(&contents) };
    let differs = || format!("it wrote {} bytes, but {} are recorded", area.bytes(), contents.len());
    filled.then_some(()).ok_or_else(differs)
}

/// Calls after which the program may rely on its host functions having run.
const WAITS: [&str; 8] = [
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuEventQuery",
    "cuMemcpyDtoH",
    "cuMemFree",
    "cuCtxDestroy",
];

/// Where a call differs from its record; `None`: it does not, and new names are bound.
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
    format!("calls {}", text_of(call.function.symbol, &Value::Map(call.inputs(names, &|_| None))))
}

fn text_of(function: &str, inputs: &Value) -> String {
    const MOST: usize = 240;
    let mut text = String::new();
    let order = |name: &str| {
        place_of(function).and_then(|place| FUNCTIONS[place].parameters?.iter().position(|p| p.name == name))
    };
    if let Value::Map(fields) = inputs {
        let mut fields = fields.clone();
        fields.sort_by_key(|(name, _)| order(name));
        write_fields(&fields, &mut text);
    }
    let cut = text.char_indices().nth(MOST).map_or(text.len(), |(at, _)| at);
    format!("{function}{}{}", &text[..cut], if cut < text.len() { "..." } else { "" })
}

struct Callback {
    function: u64,
    with_stream: bool,
    stream: u64,
    argument: u64,
}

#[derive(Default)]
struct Callbacks {
    /// What is to be run, whether something runs, and whether there is a thread.
    queue: Mutex<(VecDeque<Callback>, bool, bool)>,
    changed: Condvar,
}

impl Callbacks {
    fn add(self: &Arc<Self>, callback: Callback) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.0.push_back(callback);
        self.changed.notify_all();
        if !std::mem::replace(&mut queue.2, true) {
            let callbacks = Arc::clone(self);
            std::thread::spawn(move || callbacks.run());
        }
    }

    fn wait(&self) {
        if IN_CALLBACK.get() {
            return;
        }
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(queue, |(waiting, runs, _)| *runs || !waiting.is_empty()));
    }

    fn run(&self) {
        IN_CALLBACK.set(true);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            queue.1 = false;
            self.changed.notify_all();
            queue = self
                .changed
                .wait_while(queue, |(waiting, ..)| waiting.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let Some(next) = queue.0.pop_front() else { continue };
            queue.1 = true;
            drop(queue);
            // SAFETY: the program's function with its argument, as the call promised it.
            unsafe {
                let (function, argument) = (next.function as usize, next.argument);
                if next.with_stream {
                    std::mem::transmute::<usize, unsafe extern "C" fn(u64, u32, u64)>(function)(
                        next.stream,
                        0,
                        argument,
                    );
                } else {
                    std::mem::transmute::<usize, unsafe extern "C" fn(u64)>(function)(argument);
                }
            }
            queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}
