//! Record: every call goes to the driver below, and a line into the file.

use crate::arguments::Call;
use crate::arrivals::{Arrival, Arrivals, LEGACY, Stream};
use crate::below::Below;
use crate::functions_generated::FUNCTIONS;
use crate::memory;
use crate::mode::forward;
use crate::names::{Allocation, Names};
use crate::output::Output;
use crate::signature::Type;
use crate::stub::{Arguments, MOST};
use crate::value::{Fields, Value, to_hex, write_fields};
use driverapi::attributes::{
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The stream's flag by which the null stream does not wait for it.
const NON_BLOCKING: u64 = 1;

pub struct Recorder {
    below: Below,
    path: PathBuf,
    contents: bool,
    threads: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// `None`: it could not be written any more, which was said.
    output: Option<Output>,
    names: Names,
    arrivals: Arrivals,
    /// Sizes of the parameters by function, until something is unloaded.
    layouts: HashMap<u64, Option<Vec<usize>>>,
    told_devices: bool,
}

thread_local! {
    /// This thread's number in the recorder at that address.
    static NUMBER: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    /// How many calls of this thread are under way.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl Recorder {
    pub fn create(path: &Path, below: Below, contents: bool) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
        let mut output = Output::create(path).map_err(cannot)?;
        let program = std::env::args_os().map(|argument| Value::text(argument.to_string_lossy())).collect();
        let version = ask(&below, "cuDriverGetVersion", |out| vec![out]).unwrap_or(0);
        let mut header = String::new();
        let fields: Fields = vec![
            ("remotegpu trace".into(), Value::Unsigned(1)),
            ("contents".into(), Value::Unsigned(contents.into())),
            ("version".into(), Value::Unsigned(version & 0xffff_ffff)),
            ("driver".into(), Value::text(below.path.display().to_string())),
            ("program".into(), Value::List(program)),
        ];
        write_fields(&fields, &mut header);
        output.append(&header).map_err(cannot)?;
        Ok(Self {
            below,
            path: path.into(),
            contents,
            threads: AtomicU64::new(0),
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

    pub fn call(&self, place: usize, arguments: &Arguments) -> u32 {
        let function = &FUNCTIONS[place];
        let call = Call { function, arguments, contents: self.contents };
        let thread = self.thread();
        let (inputs, freed) = {
            let mut state = self.lock();
            let State { names, layouts, .. } = &mut *state;
            self.learn_layout(&call, layouts, names);
            let inputs = call.inputs(names, &|function| layouts.get(&function).cloned().flatten());
            // Before the call: after it another thread may have got the same address.
            (inputs, call.freed().and_then(|base| names.free(base)))
        };
        let depth = DEPTH.replace(DEPTH.get() + 1);
        let code = forward(&self.below, place, arguments);
        DEPTH.set(depth);
        let mut state = self.lock();
        let mut fields = vec![
            ("t".to_owned(), Value::Unsigned(thread)),
            ("f".to_owned(), Value::text(function.symbol)),
            ("in".to_owned(), Value::Map(inputs)),
            ("code".to_owned(), Value::Unsigned(code.into())),
        ];
        if code == 0 {
            fields.extend(self.answers(&call, &mut state));
        } else if let Some(Allocation { base, .. }) = freed {
            // The driver refused to free it.
            if state.names.allocation_at(base).is_none() {
                freed.into_iter().for_each(|allocation| state.names.insert(allocation));
            }
        }
        if depth > 0 {
            fields.push(("nested".into(), Value::Unsigned(1)));
        }
        let stream = self.stream(&call, thread);
        if code == 0 {
            let arrived = self.follow(&call, stream, &mut state);
            if !arrived.is_empty() {
                fields.push(("arrived".into(), Value::List(arrived.iter().map(|it| self.describe(it)).collect())));
            }
        }
        let line = self.append(&mut state, &fields);
        if code == 0 {
            self.expect(&call, &fields[2].1, stream, line, &mut state);
        }
        code
    }

    fn thread(&self) -> u64 {
        let ours = std::ptr::from_ref(self).addr();
        if NUMBER.get().0 != ours {
            NUMBER.set((ours, self.threads.fetch_add(1, Ordering::Relaxed) + 1));
        }
        NUMBER.get().1
    }

    /// What a call that worked gave, with our own functions in place of the driver's.
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

    /// Puts our function where `cuGetProcAddress` has put the driver's.
    fn replace_entry(&self, call: &Call) -> Option<Value> {
        let described = call.function.parameters?;
        let place = described.iter().position(|parameter| matches!(parameter.of, Type::Entry))?;
        // SAFETY: the program's name, and where it wanted the address.
        unsafe {
            let (name, at) = (memory::text(call.named("name")?)?, call.word(place));
            let address = memory::word(at, 8)?;
            let Some(found) = self.below.place_at(address, &name) else {
                return Some(if address == 0 { Value::Null } else { Value::text("unknown") });
            };
            memory::write(at, &(FUNCTIONS[found].entry as usize as u64).to_le_bytes());
            Some(Value::text(FUNCTIONS[found].symbol))
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

    /// A kernel may be passed for its function; only one of the two questions is answered for it.
    fn layout(&self, function: u64, kernel: bool) -> Option<Vec<usize>> {
        let sizes = |question: &str| {
            let mut sizes = Vec::new();
            loop {
                let mut offset = 0u64;
                let asked = |out| vec![function, sizes.len() as u64, (&raw mut offset) as u64, out];
                match ask(&self.below, question, asked) {
                    Ok(size) => sizes.push(size as usize),
                    // There is no parameter of that number.
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

    fn stream(&self, call: &Call, thread: u64) -> Stream {
        let launch = call.function.base() == "cuLaunchKernelEx";
        let config = call.named("config").filter(|_| launch);
        // SAFETY: the launch's configuration, which the driver has taken.
        let in_config = config.and_then(|at| unsafe { memory::value::<driverapi::types::CUlaunchConfig>(at) });
        let raw = in_config.map_or(call.named("stream"), |config| Some(config.hStream as u64)).unwrap_or(0);
        match raw {
            2 => (0, thread),
            0 if call.function.is_per_thread() => (0, thread),
            0 | 1 => LEGACY,
            _ => (raw, 0),
        }
    }

    /// What the program knows to be there after a call that worked.
    fn follow(&self, call: &Call, stream: Stream, state: &mut State) -> Vec<Arrival> {
        let arrivals = &mut state.arrivals;
        let event = || call.named("event").unwrap_or(0);
        match call.function.base() {
            "cuCtxSynchronize" => arrivals.context_is_done(self.context()),
            "cuStreamSynchronize" | "cuStreamQuery" => arrivals.stream_is_done(stream),
            "cuEventSynchronize" | "cuEventQuery" => arrivals.event_is_done(event()),
            "cuMemcpy" | "cuMemcpyDtoH" | "cuMemcpy2D" | "cuMemcpy3D" => arrivals.stream_is_done(stream),
            "cuEventRecord" | "cuEventRecordWithFlags" => {
                arrivals.record(event(), stream);
                Vec::new()
            }
            "cuStreamWaitEvent" => {
                arrivals.wait(stream, event());
                Vec::new()
            }
            "cuStreamCreate" | "cuStreamCreateWithPriority" => {
                if call.named("flags").is_some_and(|flags| flags & NON_BLOCKING != 0) {
                    // SAFETY: where the driver has put the new stream.
                    arrivals.set_apart(unsafe { memory::word(call.word(0), 8) }.unwrap_or(0));
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn describe(&self, arrival: &Arrival) -> Value {
        let mut fields: Fields =
            vec![("of".into(), Value::Unsigned(arrival.record as u64)), ("at".into(), Value::text(&arrival.name))];
        // Of what kernels write only a replay would make use.
        if self.contents || !arrival.name.starts_with("memory#") {
            fields.push(("data".into(), arrival.area.describe(self.contents)));
        }
        Value::Map(fields)
    }

    /// Notes what the call will write to the program's memory when its stream comes to it.
    fn expect(&self, call: &Call, inputs: &Value, stream: Stream, line: usize, state: &mut State) {
        if let Some((name, area)) = call.host_target(&state.names).filter(|_| call.function.is_asynchronous()) {
            state.arrivals.expect(stream, line, name.into(), area, self.context());
        }
        let mut named = Vec::new();
        for parameters in ["parameters", "extra"].iter().filter_map(|name| inputs.field(name)) {
            addresses(parameters, &mut named);
        }
        for address in named.iter().filter_map(|name| state.names.address_of(name)) {
            if let Some(found) = state.names.allocation_at(address).filter(|found| found.hosts) {
                let area = memory::Area::line(found.base, found.bytes);
                state.arrivals.expect(stream, line, format!("memory#{}+0", found.number), area, self.context());
            }
        }
    }

    fn context(&self) -> u64 {
        ask(&self.below, "cuCtxGetCurrent", |out| vec![out]).unwrap_or(0)
    }

    fn append(&self, state: &mut State, fields: &[(String, Value)]) -> usize {
        let mut line = String::with_capacity(256);
        write_fields(fields, &mut line);
        match state.output.as_mut().map(|output| output.append(&line)) {
            Some(Ok(number)) => number,
            Some(Err(error)) => {
                eprintln!("remotegpu: trace: {} ends here: {error}", self.path.display());
                state.output = None;
                0
            }
            None => 0,
        }
    }

    pub fn close(&self) {
        // Not if a thread is in a call that never ends.
        if let Ok(mut state) = self.state.try_lock()
            && let Some(Err(error)) = state.output.as_mut().map(Output::close)
        {
            eprintln!("remotegpu: trace: {}: {error}", self.path.display());
        }
    }
}

/// All names of addresses in a value.
fn addresses<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Text(text) if text.starts_with("memory#") => found.push(text),
        Value::List(values) => values.iter().for_each(|value| addresses(value, found)),
        _ => {}
    }
}

/// Asks the driver below for a word, for ourselves. `arguments` are given where the answer goes.
fn ask(below: &Below, symbol: &str, arguments: impl FnOnce(u64) -> Vec<u64>) -> Result<u64, u32> {
    let mut answer = 0u64;
    let given = arguments((&raw mut answer) as u64);
    let mut words = [0; MOST];
    words[..given.len()].copy_from_slice(&given);
    let target: *const c_void = below.named(symbol).ok_or(u32::MAX)?;
    // SAFETY: the driver's function, with pointers to live places of the size that it fills.
    match unsafe { Arguments::new(words).call(target) } {
        0 => Ok(answer),
        code => Err(code),
    }
}
