//! The private tables that `cuGetExportTable` gives to NVIDIA's own libraries (cudart, cuBLAS, cuFFT, ...).
//!
//! The tables, their slots and the effect of each were measured (docs/licences.md describes how). They agree with
//! ZLUDA's `dark_api` (MIT or Apache-2.0). A table is provided only if every slot that libraries are known to call
//! works. Any other slot returns CUDA_ERROR_NOT_SUPPORTED and is reported to the host.

use crate::context_storage::{self, Destructor};
use crate::errors::{
    CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
};
use crate::integrity::{self, Caller, DeviceIdentity};
use crate::types::{CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUstream, CUuuid};
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// The functions of the driver that the tables need. They are called on the program's threads and must not panic.
pub trait Host: Send + Sync {
    fn driver_version(&self) -> u32;
    /// Returns all devices in order, with the identity that the driver's attributes report.
    fn devices(&self) -> Vec<DeviceIdentity>;
    /// Returns the handle of a device's primary context, without activating the context.
    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult>;
    /// Returns the calling thread's context, or null if it has none.
    fn current_context(&self) -> CUcontext;
    /// Returns the result of `cuCtxGetId`. Null is the current context.
    fn context_id(&self, context: CUcontext) -> Result<u64, CUresult>;
    /// Returns the result of `cuStreamGetId`, or of its variant for per-thread streams.
    fn stream_id(&self, stream: CUstream, per_thread: bool) -> Result<u64, CUresult>;
    /// Loads a module like `cuModuleLoadData`.
    fn load_module(&self, image: *const c_void) -> Result<CUmodule, CUresult>;
    /// Returns the kernels of a loaded module.
    fn module_functions(&self, module: CUmodule) -> Result<Vec<CUfunction>, CUresult>;
    /// Reports a call of a slot that is not provided. `table` is the first word of the table's UUID.
    fn missing_slot(&self, table: u32, slot: usize);
}

static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

/// Returns the table for `cuGetExportTable`; `None` means CUDA_ERROR_NOT_FOUND. The first host is used for all calls.
pub fn find(uuid: &CUuuid, host: &'static dyn Host) -> Option<*const c_void> {
    HOST.get_or_init(|| host);
    let table = TABLES.iter().find(|(known, _)| *known == uuid.bytes)?.1;
    Some(table.as_ptr().cast())
}

/// One word of a table: a function, or the table's size in bytes.
#[repr(transparent)]
struct Slot(*const c_void);

/// SAFETY: a slot is an address or a number that never changes.
unsafe impl Sync for Slot {}

const fn size(slots: usize) -> Slot {
    Slot(ptr::without_provenance(slots * size_of::<Slot>()))
}

macro_rules! slot {
    ($function:expr) => {
        Slot($function as *const c_void)
    };
}

macro_rules! missing {
    ($table:literal, $slot:literal) => {
        slot!(missing_slot::<$table, $slot>)
    };
}

extern "C" fn missing_slot<const TABLE: u32, const SLOT: usize>() -> CUresult {
    if let Some(host) = HOST.get() {
        host.missing_slot(TABLE, SLOT);
    }
    CUDA_ERROR_NOT_SUPPORTED
}

static TABLES: [([u8; 16], &[Slot]); 10] = [
    (*b"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", &CUDART_INTERFACE),
    (*b"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66", &TOOLS_HOOKS),
    (*b"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc", &TOOLS_STORAGE),
    (*b"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93", &CONTEXT_STORAGE),
    (*b"\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e", &CONTEXT_CHECKS),
    (*b"\xd4\x08\x20\x55\xbd\xe6\x70\x4b\x8d\x34\xba\x12\x3c\x66\xe1\xf2", &INTEGRITY_CHECK),
    (*b"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2", &LIBRARY_SUPPORT),
    (*b"\x6e\x16\x3f\xbe\xb9\x58\x44\x4d\x83\x5c\xe1\x82\xaf\xf1\x99\x1e", &MODULE_WALK),
    (*b"\x17\x34\xdc\x26\x80\x0d\x47\x45\x87\x26\xc0\xf1\xe7\xdd\x8b\xca", &MATMUL_SUPPORT),
    (*b"\x7c\xb6\x3f\x9b\x9c\xa4\x8e\x42\xa4\x84\xbe\xb6\x6e\x6a\xed\x7f", &PROFILER_NAMES),
];

/// The table of the CUDA runtime. Runtimes of CUDA 11 load every module by slot 6 (measured: 11.7.99, 11.8.89); later
/// runtimes use `cuLibraryLoadData`. According to ZLUDA slots 1 and 8 load modules, too; no available runtime calls
/// them.
static CUDART_INTERFACE: [Slot; 13] = [
    size(13),
    missing!(0x6bd5fb6c, 1),
    slot!(primary_context),
    missing!(0x6bd5fb6c, 3),
    missing!(0x6bd5fb6c, 4),
    missing!(0x6bd5fb6c, 5),
    slot!(load_module),
    slot!(succeed),
    missing!(0x6bd5fb6c, 8),
    missing!(0x6bd5fb6c, 9),
    missing!(0x6bd5fb6c, 10),
    missing!(0x6bd5fb6c, 11),
    // Requests that the driver loads its compilers early.
    slot!(succeed),
];

static TOOLS_HOOKS: [Slot; 7] = [
    size(7),
    missing!(0xa094798c, 1),
    slot!(callback_flags),
    missing!(0xa094798c, 3),
    missing!(0xa094798c, 4),
    missing!(0xa094798c, 5),
    slot!(domain_flags),
];

static TOOLS_STORAGE: [Slot; 4] = [size(4), missing!(0x42d85a81, 1), slot!(current_context), missing!(0x42d85a81, 3)];

/// The table of context storage, the only one that does not start with its size.
static CONTEXT_STORAGE: [Slot; 4] =
    [slot!(storage_put), slot!(storage_delete), slot!(storage_get), missing!(0xc693336e, 3)];

static CONTEXT_CHECKS: [Slot; 4] = [size(4), missing!(0x263e8860, 1), slot!(check_context), slot!(succeed)];

static INTEGRITY_CHECK: [Slot; 3] = [size(3), slot!(check_integrity), missing!(0xd4082055, 2)];

/// Builds a table with few known slots: its size, and slots that report their number.
macro_rules! mostly_missing {
    ($table:literal, [$($slot:literal)*]) => {
        [size([$($slot),*].len() + 1), $(missing!($table, $slot)),*]
    };
}

/// A table that every CUDA library requests. cuBLAS stores its data of a context under the number that slot 4 returns.
///
/// If slots 51 and 39 return the number of the stream that used the last workspace, cuBLAS uses that workspace again
/// without a query of its event. Each stream must therefore have its own number.
static LIBRARY_SUPPORT: [Slot; 64] = {
    let mut slots = mostly_missing!(0x21318c60, [
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    ]);
    slots[4] = slot!(context_id);
    slots[39] = slot!(stream_id);
    slots[51] = slot!(stream_token);
    slots
};

static MODULE_WALK: [Slot; 8] = {
    let mut slots = mostly_missing!(0x6e163fbe, [1 2 3 4 5 6 7]);
    slots[7] = slot!(visit_functions);
    slots
};

static MATMUL_SUPPORT: [Slot; 5] = {
    let mut slots = mostly_missing!(0x1734dc26, [1 2 3 4]);
    slots[4] = slot!(succeed);
    slots
};

/// A table that CUPTI (13.2) requests to name results, repeatedly if it does not exist. CUPTI checks the size before it
/// uses a slot, and works without slots, so an empty table is enough.
static PROFILER_NAMES: [Slot; 1] = [size(1)];

/// Flags of the tools interface, all 0: no callback is ever enabled. The program may write to these words.
static CALLBACK_FLAGS: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
static DOMAIN_FLAGS: [AtomicU32; 14] = [const { AtomicU32::new(0) }; 14];

/// Does nothing and reports success. The slots with this function, and their arguments (measured 2026-11-28, the first
/// four words of each call):
///
/// - 6bd5fb6c[7], called by libcudart 11.7.99 and 11.8.89 at start: an address in the library, two heap addresses, 17.
///   ZLUDA publishes one number as its argument.
/// - 6bd5fb6c[12], called by libcudart 13.5.37 at start: a stack address, an address in the library, 11, 68.
/// - 263e8860[3], called by libcudart 12.9 and 13.5, cuBLAS and cuFFT: small numbers, nulls, and heap and stack
///   addresses that differ between calls, like registers that the caller did not set. ZLUDA publishes no argument and
///   the result 0.
/// - 1734dc26[4]: no call was seen since CUDA 13.0.
extern "C" fn succeed() -> CUresult {
    CUDA_SUCCESS
}

/// Calls the host and writes its result to `out`. `out` must be null or valid for a write.
unsafe fn answer<T>(out: *mut T, ask: impl FnOnce(&'static dyn Host) -> Result<T, CUresult>) -> CUresult {
    if out.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(host) = HOST.get() else { return CUDA_ERROR_DEINITIALIZED };
    match ask(*host) {
        Ok(value) => {
            // SAFETY: not null, and the caller's by contract.
            unsafe { out.write(value) };
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// Returns the handle of a device's primary context.
///
/// # Safety
/// `context` is null or points to a handle that the caller owns.
unsafe extern "C" fn primary_context(context: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: same contract.
    unsafe { answer(context, |host| host.primary_context(device)) }
}

/// Loads a module.
///
/// # Safety
/// `module` is null or points to a handle that the caller owns; `image` is a valid argument of `cuModuleLoadData`.
unsafe extern "C" fn load_module(module: *mut CUmodule, image: *const c_void) -> CUresult {
    // SAFETY: same contract.
    unsafe { answer(module, |host| host.load_module(image)) }
}

/// Returns the calling thread's context.
///
/// # Safety
/// `context` is null or points to a handle that the caller owns.
unsafe extern "C" fn current_context(context: *mut CUcontext) -> CUresult {
    // SAFETY: same contract.
    unsafe { answer(context, |host| Ok(host.current_context())) }
}

/// Returns the number of a context.
///
/// # Safety
/// `id` is null or points to a number that the caller owns.
unsafe extern "C" fn context_id(context: CUcontext, id: *mut u64) -> CUresult {
    // SAFETY: same contract.
    unsafe { answer(id, |host| host.context_id(context)) }
}

/// A bit that is set in every token, so that the token of stream 0 is not null.
const TOKEN: u64 = 1 << 63;

/// Returns a token of a stream for slot 39. It contains the stream's number; the caller passes it back and does not
/// dereference it.
///
/// # Safety
/// `token` is null or points to a pointer that the caller owns.
unsafe extern "C" fn stream_token(
    _context: CUcontext,
    stream: CUstream,
    token: *mut *mut c_void,
    per_thread: u8,
) -> CUresult {
    let named = |host: &'static dyn Host| {
        let id = host.stream_id(stream, per_thread != 0)?;
        Ok(ptr::without_provenance_mut((id | TOKEN) as usize))
    };
    // SAFETY: same contract.
    unsafe { answer(token, named) }
}

/// Returns the number of the stream that a token of `stream_token` names.
///
/// # Safety
/// `id` is null or points to a number that the caller owns.
unsafe extern "C" fn stream_id(_context: CUcontext, token: *mut c_void, id: *mut u64) -> CUresult {
    let token = token.addr() as u64;
    let number = if token & TOKEN == 0 { Err(CUDA_ERROR_INVALID_HANDLE) } else { Ok(token & !TOKEN) };
    // SAFETY: same contract.
    unsafe { answer(id, |_| number) }
}

/// Writes the address of a buffer of flags, and its number of words. Does nothing if a pointer is null.
unsafe fn hand_out(flags: &'static [AtomicU32], buffer: *mut *mut c_void, count: *mut usize) {
    if !buffer.is_null() && !count.is_null() {
        // SAFETY: not null, and the caller's by contract.
        unsafe {
            *buffer = flags.as_ptr().cast_mut().cast();
            *count = flags.len();
        }
    }
}

/// Writes the address and the length of the callback flags.
///
/// # Safety
/// Each argument is null or valid for a write.
unsafe extern "C" fn callback_flags(buffer: *mut *mut c_void, count: *mut usize) {
    // SAFETY: same contract.
    unsafe { hand_out(&CALLBACK_FLAGS, buffer, count) }
}

/// Writes the address and the length of the domain flags.
///
/// # Safety
/// Each argument is null or valid for a write.
unsafe extern "C" fn domain_flags(buffer: *mut *mut c_void, count: *mut usize) {
    // SAFETY: same contract.
    unsafe { hand_out(&DOMAIN_FLAGS, buffer, count) }
}

/// Returns the current context in place of null, as these calls require.
fn context_or_current(context: CUcontext) -> Result<CUcontext, CUresult> {
    let context = match HOST.get() {
        Some(host) if context.is_null() => host.current_context(),
        _ => context,
    };
    if context.is_null() { Err(CUDA_ERROR_INVALID_CONTEXT) } else { Ok(context) }
}

extern "C" fn storage_put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Option<Destructor>,
) -> CUresult {
    match context_or_current(context) {
        Ok(context) => {
            context_storage::put(context, key, value, destructor);
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

extern "C" fn storage_delete(context: CUcontext, key: *mut c_void) -> CUresult {
    match context_or_current(context) {
        Ok(context) if context_storage::delete(context, key) => CUDA_SUCCESS,
        Ok(_) => CUDA_ERROR_INVALID_HANDLE,
        Err(code) => code,
    }
}

/// Returns a value that a library stored in a context.
///
/// # Safety
/// `value` is null or points to a pointer that the caller owns.
unsafe extern "C" fn storage_get(value: *mut *mut c_void, context: CUcontext, key: *mut c_void) -> CUresult {
    if value.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    match context_or_current(context).map(|context| context_storage::get(context, key)) {
        Ok(Some(found)) => {
            // SAFETY: not null, and the caller's by contract.
            unsafe { *value = found };
            CUDA_SUCCESS
        }
        Ok(None) => CUDA_ERROR_INVALID_HANDLE,
        Err(code) => code,
    }
}

/// Reports that the context has no restrictions.
///
/// # Safety
/// `flags` is null or points to a number that the caller owns.
unsafe extern "C" fn check_context(_context: CUcontext, flags: *mut u32, _detail: *mut *const c_void) -> CUresult {
    if !flags.is_null() {
        // SAFETY: not null, and the caller's by contract.
        unsafe { *flags = 0 };
    }
    CUDA_SUCCESS
}

/// Answers the runtime's integrity check.
///
/// # Safety
/// `result` is null or points to two words that the caller owns.
unsafe extern "C" fn check_integrity(version: u32, unix_seconds: u64, result: *mut [u64; 2]) -> CUresult {
    if result.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(host) = HOST.get() else { return CUDA_ERROR_DEINITIALIZED };
    let caller = Caller {
        driver_version: host.driver_version(),
        process: std::process::id(),
        // SAFETY: no preconditions. Only the low half is used.
        thread: unsafe { libc::pthread_self() } as u32,
        cudart_table: CUDART_INTERFACE.as_ptr().addr() as u64,
        integrity_table: INTEGRITY_CHECK.as_ptr().addr() as u64,
        // Read the address from the table, so that it is the one through which the caller calls.
        function: INTEGRITY_CHECK[1].0.addr() as u64,
    };
    // SAFETY: not null, and the caller's by contract.
    unsafe { *result = integrity::answer(version, unix_seconds, &caller, &host.devices()) };
    CUDA_SUCCESS
}

/// Calls `visit` with each kernel of a module. Returns 1 for success and 0 for failure, not a result code.
///
/// # Safety
/// `visit` is a valid function that accepts `data`.
unsafe extern "C" fn visit_functions(
    _context: CUcontext,
    module: CUmodule,
    visit: Option<unsafe extern "C" fn(*mut c_void, CUfunction)>,
    data: *mut c_void,
) -> u32 {
    let (Some(host), Some(visit)) = (HOST.get(), visit) else { return 0 };
    let Ok(functions) = host.module_functions(module) else { return 0 };
    for function in functions {
        // SAFETY: the caller's contract.
        unsafe { visit(data, function) };
    }
    1
}

#[cfg(test)]
#[path = "export_tables_tests.rs"]
mod tests;
