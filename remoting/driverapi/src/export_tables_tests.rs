//! Tests of the export tables. Like NVIDIA's libraries, they call each function by its table and slot.

use super::*;
use crate::errors::CUDA_ERROR_INVALID_DEVICE;
use std::mem::transmute;
use std::ptr::without_provenance_mut;
use std::sync::Mutex;

struct TestHost;

#[test]
fn the_profiler_finds_a_table_without_slots() {
    let uuid = CUuuid { bytes: *b"\x7c\xb6\x3f\x9b\x9c\xa4\x8e\x42\xa4\x84\xbe\xb6\x6e\x6a\xed\x7f" };
    let table = find(&uuid, &TestHost).unwrap();
    // SAFETY: the first word of this table is its size.
    assert_eq!(unsafe { table.cast::<usize>().read() }, size_of::<usize>());
}

static REPORTED: Mutex<Vec<(u32, usize)>> = Mutex::new(Vec::new());
const CURRENT: usize = 0x4000;
const UNKNOWN: usize = 5;
const DEVICE: DeviceIdentity =
    DeviceIdentity { uuid: CUuuid { bytes: [7; 16] }, pci_domain: 0, pci_bus: 0x18, pci_device: 0 };

impl Host for TestHost {
    fn driver_version(&self) -> u32 {
        13_000
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        vec![DEVICE]
    }

    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        if device == 0 { Ok(without_provenance_mut(CURRENT)) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
    }

    fn current_context(&self) -> CUcontext {
        without_provenance_mut(CURRENT)
    }

    fn context_id(&self, context: CUcontext) -> Result<u64, CUresult> {
        if context.addr() == UNKNOWN { Err(CUDA_ERROR_INVALID_CONTEXT) } else { Ok(context.addr() as u64 + 1) }
    }

    fn stream_id(&self, stream: CUstream, per_thread: bool) -> Result<u64, CUresult> {
        if stream.addr() == UNKNOWN {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(stream.addr() as u64 * 10 + u64::from(per_thread))
    }

    fn load_module(&self, image: *const c_void) -> Result<CUmodule, CUresult> {
        if image.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(without_provenance_mut(image.addr() + 1)) }
    }

    fn module_functions(&self, module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        if module.is_null() { Err(CUDA_ERROR_INVALID_HANDLE) } else { Ok(vec![module, without_provenance_mut(2)]) }
    }

    fn missing_slot(&self, table: u32, slot: usize) {
        REPORTED.lock().unwrap().push((table, slot));
    }
}

/// Returns a table by the first word of its UUID.
fn table(first: u32) -> *const *const c_void {
    let mut known = TABLES.iter().map(|(uuid, _)| CUuuid { bytes: *uuid });
    let uuid = known.find(|uuid| uuid.bytes.starts_with(&first.to_be_bytes())).unwrap();
    find(&uuid, &TestHost).unwrap().cast()
}

macro_rules! call {
    ($table:literal, $slot:literal, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        // SAFETY: the tables are statics, and these are their slots' signatures.
        unsafe {
            let function: unsafe extern "C" fn($($type),*) -> $result = transmute(*table($table).add($slot));
            function($($argument),*)
        }
    }};
}

#[test]
fn tables_start_with_their_size_and_have_no_empty_slot() {
    for (uuid, slots) in TABLES {
        if !uuid.starts_with(b"\xc6\x93\x33\x6e") {
            assert_eq!(slots[0].0.addr(), size_of_val(slots));
        }
        assert!(slots.iter().all(|slot| !slot.0.is_null()));
    }
}

#[test]
fn other_tables_are_not_found() {
    let f8cff951 = *b"\xf8\xcf\xf9\x51\x21\x46\x8b\x4e\xb9\xe2\xfb\x46\x9e\x7c\x0d\xd9";
    for bytes in [f8cff951, [0; 16], [0xff; 16]] {
        assert!(find(&CUuuid { bytes }, &TestHost).is_none());
    }
}

#[test]
fn primary_context_comes_from_the_host() {
    let mut context = std::ptr::null_mut();
    let code = call!(0x6bd5fb6c, 2, (*mut CUcontext, CUdevice) -> CUresult, &mut context, 0);
    assert_eq!((code, context.addr()), (CUDA_SUCCESS, CURRENT));
    let code = call!(0x6bd5fb6c, 2, (*mut CUcontext, CUdevice) -> CUresult, &mut context, 5);
    assert_eq!(code, CUDA_ERROR_INVALID_DEVICE);
    let code = call!(0x6bd5fb6c, 2, (*mut CUcontext, CUdevice) -> CUresult, std::ptr::null_mut(), 0);
    assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn tools_get_buffers_of_zeros() {
    for (slot, words) in [(2, 1024), (6, 14)] {
        let (mut buffer, mut count): (*mut u32, usize) = (std::ptr::null_mut(), 0);
        // SAFETY: the slots' signature.
        unsafe {
            let function: unsafe extern "C" fn(*mut *mut u32, *mut usize) = transmute(*table(0xa094798c).add(slot));
            function(&mut buffer, &mut count);
            assert_eq!(count, words);
            assert!(std::slice::from_raw_parts(buffer, count).iter().all(|&word| word == 0));
        }
    }
}

#[test]
fn storage_of_no_context_is_that_of_the_current_one() {
    type Put = unsafe extern "C" fn(CUcontext, usize, usize, Option<Destructor>) -> CUresult;
    let none = std::ptr::null_mut();
    let own = without_provenance_mut(CURRENT);
    // SAFETY: the slot's signature.
    let put: Put = unsafe { transmute(*table(0xc693336e)) };
    let get = |context| {
        let mut value = 0usize;
        let code = call!(0xc693336e, 2, (*mut usize, CUcontext, usize) -> CUresult, &mut value, context, 11);
        (code, value)
    };
    assert_eq!(get(none), (CUDA_ERROR_INVALID_HANDLE, 0));
    // SAFETY: there is no destructor, and the value is not dereferenced.
    assert_eq!(unsafe { put(none, 11, 99, None) }, CUDA_SUCCESS);
    assert_eq!(get(own), (CUDA_SUCCESS, 99));
    assert_eq!(get(without_provenance_mut(0x9999)), (CUDA_ERROR_INVALID_HANDLE, 0));
    assert_eq!(call!(0xc693336e, 1, (CUcontext, usize) -> CUresult, own, 11), CUDA_SUCCESS);
    assert_eq!(get(none), (CUDA_ERROR_INVALID_HANDLE, 0));
}

#[test]
fn integrity_covers_the_addresses_the_caller_sees() {
    let mut result = [0u64; 2];
    assert_eq!(call!(0xd4082055, 1, (u32, u64, *mut [u64; 2]) -> CUresult, 13_022, 1_700_000_000, &mut result), 0);
    let caller = Caller {
        driver_version: 13_000,
        process: std::process::id(),
        // SAFETY: no preconditions.
        thread: unsafe { libc::pthread_self() } as u32,
        cudart_table: table(0x6bd5fb6c).addr() as u64,
        integrity_table: table(0xd4082055).addr() as u64,
        // SAFETY: the table has three slots.
        function: unsafe { *table(0xd4082055).add(1) }.addr() as u64,
    };
    assert_eq!(result, integrity::answer(13_022, 1_700_000_000, &caller, &[DEVICE]));
}

#[test]
fn kernels_of_a_module_are_visited() {
    unsafe extern "C" fn note(data: *mut c_void, function: CUfunction) {
        // SAFETY: the test passes a vector.
        unsafe { (*data.cast::<Vec<usize>>()).push(function.addr()) };
    }
    type Visit = unsafe extern "C" fn(*mut c_void, CUfunction);
    let mut seen: Vec<usize> = Vec::new();
    let mut visit = |module: usize| {
        call!(
            0x6e163fbe, 7, (CUcontext, CUmodule, Option<Visit>, *mut c_void) -> u32,
            std::ptr::null_mut(), without_provenance_mut(module), Some(note), (&raw mut seen).cast()
        )
    };
    assert_eq!((visit(1), visit(0)), (1, 0));
    assert_eq!(seen, [1, 2]);
}

#[test]
fn current_context_and_its_number_come_from_the_host() {
    let mut context = std::ptr::null_mut();
    assert_eq!(call!(0x42d85a81, 2, (*mut CUcontext) -> CUresult, &mut context), CUDA_SUCCESS);
    assert_eq!(context.addr(), CURRENT);
    let mut id = 0;
    assert_eq!(call!(0x21318c60, 4, (CUcontext, *mut u64) -> CUresult, context, &mut id), CUDA_SUCCESS);
    assert_eq!(id, CURRENT as u64 + 1);
    let unknown = without_provenance_mut(UNKNOWN);
    assert_eq!(call!(0x21318c60, 4, (CUcontext, *mut u64) -> CUresult, unknown, &mut id), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(id, CURRENT as u64 + 1);
}

#[test]
fn each_stream_has_a_number_of_its_own() {
    let none = std::ptr::null_mut();
    let number = |stream: usize, per_thread: u8| {
        let (mut token, mut id) = (none, u64::MAX);
        let code = call!(
            0x21318c60, 51, (CUcontext, CUstream, *mut *mut c_void, u8) -> CUresult,
            none, without_provenance_mut(stream), &mut token, per_thread
        );
        if code != CUDA_SUCCESS {
            return Err(code);
        }
        assert!(!token.is_null());
        match call!(0x21318c60, 39, (CUcontext, *mut c_void, *mut u64) -> CUresult, none, token, &mut id) {
            CUDA_SUCCESS => Ok(id),
            code => Err(code),
        }
    };
    assert_eq!([number(0, 0), number(0, 1), number(3, 0)], [Ok(0), Ok(1), Ok(30)]);
    assert_eq!(number(UNKNOWN, 0), Err(CUDA_ERROR_INVALID_HANDLE));
    let mut id = 7;
    let code = call!(0x21318c60, 39, (CUcontext, *mut c_void, *mut u64) -> CUresult, none, none, &mut id);
    assert_eq!((code, id), (CUDA_ERROR_INVALID_HANDLE, 7));
}

#[test]
fn modules_of_old_runtimes_are_loaded_by_the_host() {
    let mut module = std::ptr::null_mut();
    let image = without_provenance_mut::<c_void>(0x700);
    assert_eq!(call!(0x6bd5fb6c, 6, (*mut CUmodule, *const c_void) -> CUresult, &mut module, image), CUDA_SUCCESS);
    assert_eq!(module.addr(), 0x701);
    let none = std::ptr::null();
    assert_eq!(
        call!(0x6bd5fb6c, 6, (*mut CUmodule, *const c_void) -> CUresult, &mut module, none),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn each_slot_that_is_not_provided_says_its_number() {
    for (table, slot) in [(0x6bd5_fb6c, 8), (0x2131_8c60, 5), (0x2131_8c60, 63), (0x6e16_3fbe, 3), (0x1734_dc26, 1)] {
        // SAFETY: this slot's function takes no arguments.
        let function: unsafe extern "C" fn() -> CUresult = unsafe { transmute(*self::table(table).add(slot)) };
        // SAFETY: as above.
        assert_eq!(unsafe { function() }, CUDA_ERROR_NOT_SUPPORTED);
        assert!(REPORTED.lock().unwrap().contains(&(table, slot)));
    }
}
