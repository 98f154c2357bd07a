//! Substitutes for the driver's objects in a replay: numbers for handles, mappings for memory, and private tables.

use crate::arguments::World;
use crate::memory;
use crate::names::{Allocation, ELSEWHERE, Names};
use crate::recording::Recording;
use crate::signature::{self, place_of};
use crate::value::{Value, from_hex};
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use driverapi::errors::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED};
use driverapi::export_tables::{self, Host};
use driverapi::integrity::DeviceIdentity;
use driverapi::types::{CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream, CUuuid};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::OnceLock;

/// The size of the address range that handles come from. It is reserved without access, so that a program that
/// dereferences a handle crashes at once.
const HANDLES: u64 = 1 << 30;
const STEP: u64 = 64;

pub struct Made {
    pub names: Names,
    functions: signature::Table,
    next: u64,
    /// The addresses of registered memory, which belongs to the program.
    adopted: HashSet<u64>,
}

impl Made {
    pub fn new(functions: signature::Table) -> Option<Self> {
        let next = memory::reserve(HANDLES, false)?;
        Some(Self { names: Names::given(), functions, next, adopted: HashSet::new() })
    }

    pub fn free(&mut self, base: u64) {
        if let Some(gone) = self.names.free(base).filter(|_| !self.adopted.remove(&base)) {
            memory::give_back(gone.base, gone.bytes);
        }
    }
}

fn number_of(name: &Value) -> Option<u64> {
    name.as_text()?.strip_prefix("memory#")?.strip_suffix("+0")?.parse().ok()
}

impl World for Made {
    fn handle(&mut self, kind: &'static str, name: &Value) -> Option<u64> {
        let Some(text) = name.as_text() else { return name.word() };
        if let Some(raw) = self.names.raw(text) {
            return Some(raw);
        }
        let kind = if text.starts_with("kernel#") { "kernel" } else { kind };
        self.next += STEP;
        self.names.bind(text, kind, self.next).then_some(self.next)
    }

    fn address(&mut self, name: &Value) -> Option<u64> {
        match name {
            Value::Null => Some(0),
            Value::Text(text) if text != ELSEWHERE => self.names.address_of(text),
            _ => None,
        }
    }

    fn allocation(&mut self, name: &Value, bytes: u64, usable: bool) -> Option<u64> {
        if let Some(known) = self.address(name) {
            return Some(known);
        }
        let (number, base) = (number_of(name)?, memory::reserve(bytes, usable)?);
        self.names.insert(Allocation { number, base, bytes, hosts: usable });
        Some(base)
    }

    fn adopt(&mut self, name: &Value, address: u64, bytes: u64) {
        if let Some(number) = number_of(name) {
            self.adopted.insert(address);
            self.names.insert(Allocation { number, base: address, bytes, hosts: true });
        }
    }

    fn table(&mut self, uuid: u64) -> Option<u64> {
        // SAFETY: the program passed this identifier.
        let uuid = unsafe { memory::value::<CUuuid>(uuid) }?;
        export_tables::find(&uuid, TABLES.get()?).map(|table| table as u64)
    }

    fn entry(&self, symbol: &Value) -> u64 {
        let place = symbol.as_text().and_then(|symbol| place_of(self.functions, symbol));
        place.map_or(0, |place| self.functions[place].entry as usize as u64)
    }
}

/// The functions of the driver's private tables. Calls of them are not recorded, so this module answers with facts from
/// the recording.
pub struct Tables {
    version: u32,
    devices: Vec<DeviceIdentity>,
    /// The primary context of each device, or `None` if the recording contains none.
    primaries: Vec<Option<u64>>,
}

static TABLES: OnceLock<Tables> = OnceLock::new();

thread_local! {
    /// The stack of contexts of the calling thread. It is never dropped, because programs call the driver until the end
    /// of a thread.
    static CURRENT: Cell<Option<&'static RefCell<Vec<u64>>>> = const { Cell::new(None) };
}

fn current() -> &'static RefCell<Vec<u64>> {
    let stack = CURRENT.get().unwrap_or_else(|| Box::leak(Box::default()));
    CURRENT.set(Some(stack));
    stack
}

impl Tables {
    pub fn prepare(recording: &Recording, made: &mut Made) {
        let devices: Vec<_> = recording.records.iter().flat_map(|record| &record.devices).map(identity).collect();
        let mut primaries = vec![None; devices.len()];
        for record in recording.records.iter().filter(|record| record.function == "cuDevicePrimaryCtxRetain") {
            let device =
                record.inputs.field("device").and_then(Value::word).map_or(usize::MAX, |device| device as usize);
            if let (Some(place), Some(context)) = (primaries.get_mut(device), record.outputs.field("context")) {
                *place = made.handle("context", context);
            }
        }
        TABLES.get_or_init(|| Tables { version: recording.version, devices, primaries });
    }
}

fn identity(device: &Value) -> DeviceIdentity {
    let number = |name: &str| device.field(name).and_then(Value::word).unwrap_or(0) as u32;
    let uuid = device.field("uuid").and_then(Value::as_text).and_then(from_hex).unwrap_or_default();
    DeviceIdentity {
        uuid: CUuuid { bytes: uuid.try_into().unwrap_or_default() },
        pci_domain: number("domain"),
        pci_bus: number("bus"),
        pci_device: number("device"),
    }
}

/// Updates the calling thread's stack of contexts after a call, from its argument and the recorded answer.
pub fn follow_context(base: &str, given: u64, answered: u64) {
    let stack = &mut *current().borrow_mut();
    match base {
        "cuCtxCreate" => stack.push(answered),
        "cuCtxPushCurrent" => stack.push(given),
        "cuCtxPopCurrent" => drop(stack.pop()),
        "cuCtxSetCurrent" => {
            stack.pop();
            stack.extend((given != 0).then_some(given));
        }
        "cuCtxGetCurrent" => {
            stack.pop();
            stack.extend((answered != 0).then_some(answered));
        }
        _ => {}
    }
}

impl Host for Tables {
    fn driver_version(&self) -> u32 {
        self.version
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        self.devices.clone()
    }

    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        let device = usize::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        let context = self.primaries.get(device).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        context.map(|raw| without_provenance_mut(raw as usize)).ok_or(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn current_context(&self) -> CUcontext {
        without_provenance_mut(current().borrow().last().copied().unwrap_or(0) as usize)
    }

    /// Returns the handle of the context as its id, because the recording contains no answers of private calls.
    fn context_id(&self, context: CUcontext) -> Result<u64, CUresult> {
        let context = if context.is_null() { self.current_context() } else { context };
        Ok(context.addr() as u64)
    }

    /// Returns the handle of the stream as its id. The per-thread default streams of all threads have the same id.
    fn stream_id(&self, stream: CUstream, per_thread: bool) -> Result<u64, CUresult> {
        let default = if per_thread { CU_STREAM_PER_THREAD } else { CU_STREAM_LEGACY };
        Ok(if stream.is_null() { default } else { stream }.addr() as u64)
    }

    fn load_module(&self, _image: *const c_void) -> Result<CUmodule, CUresult> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn module_functions(&self, _module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn missing_slot(&self, table: u32, slot: usize) {
        eprintln!("remotegpu: trace: slot {slot} of the private table {table:08x} cannot be replayed");
    }
}
