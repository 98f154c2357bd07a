//! Pinned memory of the program. It is memory of this process: the device reaches it by copies, or has a mirror of it.

use crate::call::{Code, refused, write};
use crate::memory::host::{self, HostRange};
use crate::memory::mapped;
use crate::session::HostBox;
use crate::{context, exports, sys};
use driverapi::attributes::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
use driverapi::constants::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_READ_ONLY,
};
use driverapi::errors::*;
use driverapi::types::CUdeviceptr;
use std::ffi::{c_uint, c_void};

const ALLOC_FLAGS: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: c_uint =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;

exports! {
    fn cuMemHostAlloc(pointer: *mut *mut c_void, size: usize, flags: c_uint) { allocate(pointer, size, flags) }

    fn cuMemAllocHost_v2(pointer: *mut *mut c_void, size: usize) { allocate(pointer, size, 0) }

    fn cuMemFreeHost(pointer: *mut c_void) {
        context::current()?;
        let range = host::find(pointer.addr()).filter(|range| !range.registered && range.start == pointer.addr());
        wait_until_unused(&range.ok_or(CUDA_ERROR_INVALID_VALUE)?)?;
        let range = host::remove(pointer.addr(), false, CUDA_ERROR_INVALID_VALUE)?;
        if !mapped::forget(pointer.addr())? {
            sys::free_pages(pointer.cast(), range.size);
        }
        Ok(())
    }

    fn cuMemHostRegister(pointer: *mut c_void, size: usize, flags: c_uint) { register(pointer, size, flags) }

    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: c_uint) { register(pointer, size, flags) }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        context::current()?;
        if pointer.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let range = host::find(pointer.addr()).ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        wait_until_unused(&range)?;
        host::remove(pointer.addr(), true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        mapped::forget(range.start).map(drop)
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) {
        let live = context::current()?;
        if device.is_null() || flags != 0 || host::find(pointer.addr()).is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        match mapped::device_address(&live.session, pointer.addr() as u64, 1) {
            Some(address) => write(device, address),
            None => refused("cuMemHostGetDevicePointer of memory without a mirror"),
        }
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void) {
        context::current()?;
        write(flags, host::find(pointer.addr()).ok_or(CUDA_ERROR_INVALID_VALUE)?.flags)
    }
}

unsafe fn allocate(to: *mut *mut c_void, size: usize, flags: c_uint) -> Result<(), Code> {
    let live = context::current()?;
    if to.is_null() || size == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mirrored = if flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 { mapped::allocate(&live, size)? } else { None };
    let start = mirrored.unwrap_or_else(|| sys::allocate_pages(size).expose_provenance());
    if start == 0 {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let range = HostRange { start, size, flags, registered: false, context: live.handle, ordinal: live.device.ordinal };
    host::add(range)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, std::ptr::with_exposed_provenance_mut(start)) }
}

fn register(pointer: *mut c_void, size: usize, flags: c_uint) -> Result<(), Code> {
    let live = context::current()?;
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return refused("cuMemHostRegister with CU_MEMHOSTREGISTER_IOMEMORY");
    }
    let fits = pointer.addr().checked_add(size).is_some();
    if pointer.is_null() || size == 0 || !fits || flags & !REGISTER_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let read_only = live.device.attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
    if flags & CU_MEMHOSTREGISTER_READ_ONLY != 0 && !read_only {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let (context, ordinal) = (live.handle, live.device.ordinal);
    let start = pointer.expose_provenance();
    host::add(HostRange { start, size, flags, registered: true, context, ordinal })?;
    if flags & CU_MEMHOSTREGISTER_DEVICEMAP != 0 { mapped::register(&live, start, size) } else { Ok(()) }
}

/// Copies that still read or write the memory are waited for, as CUDA does.
fn wait_until_unused(range: &HostRange) -> Result<(), Code> {
    let memory = HostBox::linear(range.start, range.size as u64);
    let contexts = context::all_live();
    contexts.iter().filter(|live| live.session.is_in_use(&memory)).try_for_each(|live| live.synchronise())
}
