//! The entry points for pinned memory, which is memory of this process. The device accesses it by copies or by a
//! mirror.

use crate::Code;
use crate::boundary::{guard, has_said, refused, write};
use crate::devices::context;
use crate::memory::host::{self, HostKind, HostRange};
use crate::memory::mapped::{self, NoMirror};
use crate::memory::pinned;
use crate::program::stats::Counter;
use crate::{exports, session};
use driverapi::attributes::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
use driverapi::caller::{SEVERAL_RANKS, is_for_distant_ranks, is_of_nccl};
use driverapi::constants::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY,
};
use driverapi::errors::*;
use driverapi::export_with_caller;
use driverapi::types::CUdeviceptr;
use std::ffi::{c_uint, c_void};

const ALLOC_FLAGS: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: c_uint = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

export_with_caller! {
    fn cuMemHostAlloc(pointer, size, flags) = allocate_for_caller;
}

unsafe extern "C" fn allocate_for_caller(to: *mut *mut c_void, size: usize, flags: c_uint, caller: usize) -> Code {
    static COUNTER: Counter = Counter::new("cuMemHostAlloc");
    guard(&COUNTER, || match is_for_distant_ranks(caller) {
        true => refused(SEVERAL_RANKS),
        // SAFETY: as the caller of the exported function vouches.
        false => unsafe { allocate(to, size, flags) },
    })
}

exports! {
    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, size: usize) { allocate(pointer, size, 0) }

    fn cuMemFreeHost(pointer: *mut c_void) {
        context::current()?;
        if pointer.is_null() {
            return Ok(());
        }
        pinned::remove(pointer.addr(), HostKind::Allocated, CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        context::current()?;
        if pointer.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pinned::remove(pointer.addr(), HostKind::Registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) {
        let live = context::current()?;
        let range = page_locked(pointer).filter(|_| !device.is_null() && flags == 0);
        let range = range.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match pinned::device_pointer(&live, &range, pointer.addr() as u64) {
            Ok(address) => write(device, address),
            Err(NoMirror::Failed(code)) => Err(code),
            Err(NoMirror::Budget { most }) => {
                let what = "cuMemHostGetDevicePointer is asked for";
                pinned::say_beyond(&range, most, what, CUDA_ERROR_NOT_SUPPORTED);
                has_said();
                Err(CUDA_ERROR_NOT_SUPPORTED)
            }
            Err(_) => refused("cuMemHostGetDevicePointer of memory without a mirror"),
        }
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void) {
        context::current()?;
        write(flags, page_locked(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?.flags)
    }
}

/// Returns the page-locked memory that contains an address.
fn page_locked(pointer: *mut c_void) -> Option<HostRange> {
    host::find(pointer.addr()).filter(|range| !range.kind.is_managed())
}

unsafe fn allocate(to: *mut *mut c_void, size: usize, flags: c_uint) -> Result<(), Code> {
    let live = context::current()?;
    if to.is_null() || size == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let start = pinned::allocate(&live, size, HostKind::Allocated);
    if start == 0 {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let (context, ordinal) = (live.handle, live.device.ordinal);
    // With unified addressing, all page-locked memory counts as mapped.
    let told = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    let range = HostRange { start, size, flags: told, kind: HostKind::Allocated, context, ordinal };
    pinned::add(&live, range)?;
    if flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 {
        mirror_if_possible(mapped::reach(&live, &range))?;
    }
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, std::ptr::with_exposed_provenance_mut(start)) }
}

/// Ignores that memory has no mirror, because it can still be copied. A request for its device pointer and a launch
/// with its address fail.
fn mirror_if_possible(mirrored: Result<(), NoMirror>) -> Result<(), Code> {
    match mirrored {
        Ok(()) | Err(NoMirror::Budget { .. } | NoMirror::Elsewhere | NoMirror::Failed(CUDA_ERROR_OUT_OF_MEMORY)) => {
            Ok(())
        }
        Err(NoMirror::Failed(code)) => Err(code),
    }
}

export_with_caller! {
    fn cuMemHostRegister(pointer, size, flags) = register_old_for_caller;
}

export_with_caller! {
    fn cuMemHostRegister_v2(pointer, size, flags) = register_for_caller;
}

extern "C" fn register_old_for_caller(pointer: *mut c_void, size: usize, flags: c_uint, caller: usize) -> Code {
    static COUNTER: Counter = Counter::new("cuMemHostRegister");
    guard(&COUNTER, || register(pointer, size, flags, caller))
}

extern "C" fn register_for_caller(pointer: *mut c_void, size: usize, flags: c_uint, caller: usize) -> Code {
    static COUNTER: Counter = Counter::new("cuMemHostRegister_v2");
    guard(&COUNTER, || register(pointer, size, flags, caller))
}

fn register(pointer: *mut c_void, size: usize, flags: c_uint, caller: usize) -> Result<(), Code> {
    let live = context::current()?;
    let fits = pointer.addr().checked_add(size).is_some();
    if pointer.is_null() || size == 0 || !fits || flags & !REGISTER_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if is_of_nccl(caller) {
        return refused(SEVERAL_RANKS);
    }
    let read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY != 0;
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return refused("cuMemHostRegister with CU_MEMHOSTREGISTER_IOMEMORY");
    }
    if read_only && live.device.attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let (context, ordinal) = (live.handle, live.device.ordinal);
    let start = pointer.expose_provenance();
    let of_a_device = session::owner_of(start as u64).is_some_and(|owner| owner.arena().is_reserved());
    if of_a_device && host::find(start).is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let range = HostRange { start, size, flags, kind: HostKind::Registered, context, ordinal };
    pinned::add(&live, range)?;
    let mapped = flags & CU_MEMHOSTREGISTER_DEVICEMAP != 0;
    mirror_if_possible(if mapped { mapped::register(&live, &range) } else { Ok(()) })
}
