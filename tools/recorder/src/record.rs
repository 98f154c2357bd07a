//! Record mode: passes every call to the real driver and writes a line for it.

use crate::arguments::Call;
use crate::arrivals::{Arrival, Arrivals, Stream, stream_of};
use crate::below::Below;
use crate::memory;
use crate::names::Names;
use crate::output::Output;
use crate::recording::COVERED;
use crate::registers::{Arguments, MOST};
use crate::signature::Type;
use crate::threads;
use crate::value::{Fields, Value, to_hex, write_fields};
use driverapi::attributes::{
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub struct Recorder {
    below: Below,
    path: PathBuf,
    contents: bool,
    /// The time at which the recording began, or `None` if it contains no times.
    began: Option<Instant>,
    state: Mutex<State>,
}

struct State {
    /// The output file, or `None` after a write failed, which was reported.
    output: Option<Output>,
    names: Names,
    arrivals: Arrivals,
    /// The sizes of the kernel parameters, by function. The map is cleared when code is unloaded.
    layouts: HashMap<u64, Option<Vec<usize>>>,
    told_devices: bool,
}

impl Recorder {
    pub fn create(path: &Path, below: Below, contents: bool, times: bool) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
        let mut output = Output::create(path).map_err(cannot)?;
        let program = std::env::args_os().map(|argument| Value::text(argument.to_string_lossy())).collect();
        let version = ask(&below, "cuDriverGetVersion", |out| vec![out]).unwrap_or(0);
        let mut header = String::new();
        let mut fields: Fields = vec![
            ("remotegpu trace".into(), Value::Unsigned(1)),
            ("contents".into(), Value::Unsigned(contents.into())),
            ("version".into(), Value::Unsigned(version & 0xffff_ffff)),
            ("driver".into(), Value::text(below.path.display().to_string())),
            ("program".into(), Value::List(program)),
        ];
        let began = times.then(|| {
            // This clock is the same in all processes of the program.
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            fields.push(("began".into(), Value::Unsigned(since.as_nanos() as u64)));
            Instant::now()
        });
        write_fields(&fields, &mut header);
        output.append(&header).map_err(cannot)?;
        Ok(Self {
            below,
            path: path.into(),
            contents,
            began,
            state: Mutex::new(State {
                output: Some(output),
                names: Names::default(),
                arrivals: Arrivals::default(),
                layouts: HashMap::new(),
                told_devices: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn call(&'static self, place: usize, arguments: &Arguments) -> u32 {
        let function = &self.below.table[place];
        let call = Call { function, arguments, contents: self.contents };
        let stream = stream_of(&call, threads::number());
        let (inputs, freed) = {
            let mut state = self.lock();
            let State { names, layouts, .. } = &mut *state;
            self.learn_layout(&call, layouts, names);
            let inputs = call.inputs(names, &|function| layouts.get(&function).cloned().flatten());
            // The allocation is removed before the call, because after the call another thread may get the same
            // address.
            (Value::Map(inputs), call.freed().and_then(|base| names.free(base)))
        };
        let mut given = *arguments;
        let wrapped = self.wrap(&call, stream, &mut given);
        let started = self.began.map(|began| (began.elapsed(), Instant::now()));
        let (code, nested) = threads::inside(|| self.below.forward(place, &given));
        let times = started.map(|(start, since)| [start, since.elapsed()].map(|it| it.as_nanos() as u64));
        let mut state = self.lock();
        let mut fields = vec![
            ("t".to_owned(), Value::text(threads::name())),
            ("f".to_owned(), Value::text(function.symbol)),
            ("in".to_owned(), inputs),
            ("code".to_owned(), Value::Unsigned(code.into())),
        ];
        if nested {
            fields.push(("nested".into(), Value::Unsigned(1)));
        }
        if let Some([start, took]) = times {
            fields.push(("start".into(), Value::Unsigned(start)));
            fields.push(("took".into(), Value::Unsigned(took)));
        }
        if code == 0 {
            fields.extend(self.answers(&call, &mut state));
            let line = state.output.as_ref().map_or(0, Output::next_line);
            self.expect(&call, &fields[2].1, stream, line, &mut state);
            let arrived = state.arrivals.follow(&call, stream, self.context_for(&call));
            freed.into_iter().for_each(|allocation| state.arrivals.forget(allocation.base));
            if !arrived.is_empty() {
                fields.push(("arrived".into(), self.told(&arrived)));
            }
        } else {
            // The driver did not accept the host function.
            // SAFETY: `wrap` allocated the box, and nothing else refers to it.
            wrapped.into_iter().for_each(|wrapped| drop(unsafe { Box::from_raw(wrapped) }));
            if let Some(allocation) = freed.filter(|it| state.names.allocation_at(it.base).is_none()) {
                state.names.insert(allocation);
            }
        }
        self.append(&mut state, &fields);
        code
    }

    /// Returns the outputs of a call that succeeded, and replaces driver functions in the answer by functions of this
    /// library.
    fn answers(&self, call: &Call, state: &mut State) -> Fields {
        let mut outputs = call.outputs(&mut state.names);
        if let Some(entry) = self.replace_entry(call) {
            outputs.insert(0, ("address".into(), entry));
        }
        if call.function.unloads() {
            state.layouts.clear();
        }
        let mut fields = Fields::new();
        if !outputs.is_empty() {
            fields.push(("out".into(), Value::Map(outputs)));
        }
        if call.function.symbol == "cuInit" && !std::mem::replace(&mut state.told_devices, true) {
            fields.push(("devices".into(), Value::List(self.devices())));
        }
        fields
    }

    /// Replaces a driver function in the answer of `cuGetProcAddress` by the function of this library.
    fn replace_entry(&self, call: &Call) -> Option<Value> {
        let described = call.function.parameters?;
        let place = described.iter().position(|parameter| matches!(parameter.of, Type::Entry))?;
        // SAFETY: the program passed the name, and the address for the answer.
        unsafe {
            let (name, at) = (memory::text(call.named("name")?)?, call.word(place));
            let address = memory::word(at, 8)?;
            let Some(found) = self.below.place_at(address, &name) else {
                return Some(if address == 0 { Value::Null } else { Value::text("unknown") });
            };
            let found = &self.below.table[found];
            memory::write(at, &(found.entry as usize as u64).to_le_bytes());
            Some(Value::text(found.symbol))
        }
    }

    fn learn_layout(&self, call: &Call, layouts: &mut HashMap<u64, Option<Vec<usize>>>, names: &Names) {
        let described = call.function.parameters.unwrap_or_default();
        let place = described.iter().find_map(|parameter| match parameter.of {
            Type::Params(place) => Some(place),
            _ => None,
        });
        if let Some(function) = place.map(|place| call.word(place)) {
            layouts.entry(function).or_insert_with(|| self.layout(function, names.is_kernel(function)));
        }
    }

    /// Returns the sizes of a function's parameters. The program may pass a kernel in place of a function, and the
    /// driver has a separate query for each.
    fn layout(&self, function: u64, kernel: bool) -> Option<Vec<usize>> {
        let sizes = |question: &str| {
            let mut sizes = Vec::new();
            loop {
                let mut offset = 0u64;
                let asked = |out| vec![function, sizes.len() as u64, (&raw mut offset) as u64, out];
                match ask(&self.below, question, asked) {
                    Ok(size) => sizes.push(size as usize),
                    // The function has no parameter with that number.
                    Err(1) => return Some(sizes),
                    Err(_) => return None,
                }
            }
        };
        if kernel { sizes("cuKernelGetParamInfo") } else { sizes("cuFuncGetParamInfo") }
    }

    fn devices(&self) -> Vec<Value> {
        let attribute = |device, number| {
            Value::Unsigned(
                ask(&self.below, "cuDeviceGetAttribute", |out| vec![out, u64::from(number), device]).unwrap_or(0),
            )
        };
        let count = ask(&self.below, "cuDeviceGetCount", |out| vec![out]).unwrap_or(0);
        (0..count)
            .map(|device| {
                let mut uuid = [0u8; 16];
                let _ = ask(&self.below, "cuDeviceGetUuid", |_| vec![uuid.as_mut_ptr() as u64, device]);
                Value::Map(vec![
                    ("uuid".into(), Value::Text(to_hex(&uuid))),
                    ("domain".into(), attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)),
                    ("bus".into(), attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)),
                    ("device".into(), attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)),
                ])
            })
            .collect()
    }

    fn told(&self, arrived: &[Arrival]) -> Value {
        let told = arrived.iter().filter_map(|arrival| {
            // A recording without contents does not need writes of kernels: only a replay uses them.
            let kernels = arrival.name.starts_with("memory#");
            let data = match arrival.covered {
                true if kernels => return None,
                true => Value::text(COVERED),
                false if kernels && !self.contents => Value::text("not recorded"),
                false => arrival.area.describe(self.contents),
            };
            Some(Value::Map(vec![
                ("of".into(), Value::Unsigned(arrival.record as u64)),
                ("at".into(), Value::text(&arrival.name)),
                ("data".into(), data),
            ]))
        });
        Value::List(told.collect())
    }

    /// Replaces the program's host function by one of this library that records when it runs. Returns the box that the
    /// new function gets as its argument.
    fn wrap(&'static self, call: &Call, stream: Stream, arguments: &mut Arguments) -> Option<*mut Wrapped> {
        let described = call.function.parameters?;
        let place = described.iter().position(|parameter| matches!(parameter.of, Type::Callback(_)))?;
        let argument = described.iter().position(|parameter| parameter.name == "argument")?;
        let function = Some(call.word(place)).filter(|function| *function != 0)?;
        let wrapped = Wrapped { function, argument: call.word(argument), recorder: self };
        let wrapped = Box::into_raw(Box::new(wrapped));
        self.lock().arrivals.record(wrapped as u64, stream);
        let ours = if matches!(described[place].of, Type::Callback(true)) {
            run_callback as *const ()
        } else {
            run_host as *const ()
        };
        arguments.words[place] = ours as usize as u64;
        arguments.words[argument] = wrapped as u64;
        Some(wrapped)
    }

    fn arrived_at(&self, wrapped: &Wrapped) {
        let mut state = self.lock();
        let arrived = state.arrivals.event_is_done(std::ptr::from_ref(wrapped) as u64);
        // Writes of kernels wait: a replay delivers them to a thread of the program when that thread waits for the
        // kernel.
        let (kernels, arrived): (Vec<_>, Vec<_>) = arrived.into_iter().partition(|it| it.name.starts_with("memory#"));
        state.arrivals.put_back(kernels);
        if !arrived.is_empty() {
            let fields = [
                ("t".to_owned(), Value::text("driver")),
                ("f".to_owned(), Value::text("host function")),
                ("in".to_owned(), Value::Map(Vec::new())),
                ("code".to_owned(), Value::Unsigned(0)),
                ("nested".to_owned(), Value::Unsigned(1)),
                ("arrived".to_owned(), self.told(&arrived)),
            ];
            self.append(&mut state, &fields);
        }
    }

    /// Registers the asynchronous writes of a call to host memory, which happen when the stream reaches the call.
    fn expect(&self, call: &Call, inputs: &Value, stream: Stream, line: usize, state: &mut State) {
        let State { names, arrivals, .. } = state;
        if let Some((name, area)) = call.host_target(names).filter(|_| call.function.is_asynchronous()) {
            arrivals.expect(stream, line, name.into(), area, self.context());
        }
        for found in call.may_write(inputs, names) {
            let area = memory::Area::line(found.base, found.bytes);
            arrivals.expect(stream, line, format!("memory#{}+0", found.number), area, self.context());
        }
    }

    /// Returns the context whose work a call waits for, or 0 if the call does not wait for a context.
    fn context_for(&self, call: &Call) -> u64 {
        if call.function.base() == "cuCtxSynchronize" {
            call.named("context").unwrap_or_else(|| self.context())
        } else {
            0
        }
    }

    fn context(&self) -> u64 {
        ask(&self.below, "cuCtxGetCurrent", |out| vec![out]).unwrap_or(0)
    }

    fn append(&self, state: &mut State, fields: &[(String, Value)]) {
        let mut line = String::with_capacity(256);
        write_fields(fields, &mut line);
        if let Some(Err(error)) = state.output.as_mut().map(|output| output.append(&line)) {
            eprintln!("remotegpu: trace: {} ends here: {error}", self.path.display());
            state.output = None;
        }
    }

    pub fn close(&self) {
        // The lock is not free if a thread is in a call that never returns.
        if let Ok(mut state) = self.state.try_lock()
            && let Some(Err(error)) = state.output.as_mut().map(Output::close)
        {
            eprintln!("remotegpu: trace: {}: {error}", self.path.display());
        }
    }
}

/// The program's host function and its argument. The address of this value identifies the position in the stream.
struct Wrapped {
    function: u64,
    argument: u64,
    recorder: &'static Recorder,
}

/// Records the earlier writes of the stream as complete, then runs the program's host function.
///
/// # Safety
/// Only the driver may call this function, with the box that `wrap` made.
unsafe extern "C" fn run_host(wrapped: *mut Wrapped) {
    // SAFETY: the caller guarantees it. The box is never freed, because a graph may run the host function again.
    unsafe {
        let wrapped = &*wrapped;
        wrapped.recorder.arrived_at(wrapped);
        std::mem::transmute::<usize, unsafe extern "C" fn(u64)>(wrapped.function as usize)(wrapped.argument);
    }
}

/// Like `run_host`, for a host function that also gets the stream and a status.
///
/// # Safety
/// The same conditions as for `run_host`.
unsafe extern "C" fn run_callback(stream: u64, status: u32, wrapped: *mut Wrapped) {
    // SAFETY: the caller guarantees it. The box is never freed, because a graph may run the host function again.
    unsafe {
        let wrapped = &*wrapped;
        wrapped.recorder.arrived_at(wrapped);
        let function = wrapped.function as usize;
        std::mem::transmute::<usize, unsafe extern "C" fn(u64, u32, u64)>(function)(stream, status, wrapped.argument);
    }
}

/// Calls a driver function that returns one word. `arguments` receives the address for the word and returns the
/// arguments.
fn ask(below: &Below, symbol: &str, arguments: impl FnOnce(u64) -> Vec<u64>) -> Result<u64, u32> {
    let mut answer = 0u64;
    let given = arguments((&raw mut answer) as u64);
    let mut words = [0; MOST];
    words[..given.len()].copy_from_slice(&given);
    let target: *const c_void = below.named(symbol).ok_or(u32::MAX)?;
    // SAFETY: a function of the driver, with pointers to live memory of the size that the function fills.
    match unsafe { Arguments::new(words).call(target) } {
        0 => Ok(answer),
        code => Err(code),
    }
}
