//! The entry points for page-locked host memory. Kernels use this memory at the same address as the program.

use super::entry::entry_points;
use crate::driver::{current, driver};
use crate::ffi::{Out, R, edge};
use crate::memory::allocations::Kind;
use driverapi::caller::is_of_nccl;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::export_with_caller;
use driverapi::report;
use driverapi::types::*;
use std::ffi::{c_uint, c_void};

const ALLOC_FLAGS: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
/// The flag for I/O memory, which `cuMemHostRegister` refuses. CUDA does the same on a system whose kernel does not
/// support the flag.
const ABSENT_REGISTER_FLAGS: c_uint = CU_MEMHOSTREGISTER_IOMEMORY;
const REGISTER_FLAGS: c_uint =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY | ABSENT_REGISTER_FLAGS;

fn allocate(address: Out<*mut c_void>, bytes: usize, flags: c_uint) -> R {
    let context = current()?;
    let address = address.required()?;
    driver()?.graphs.check_call()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // With unified addressing all page-locked memory is portable and mapped, and a query of the flags shows this.
    let flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    let kind = Kind::Pinned { flags };
    let base = driver()?.memory.allocate(bytes as u64, kind, context.device.ordinal, context.id)?.base;
    address.set(std::ptr::with_exposed_provenance_mut(base as usize))
}

fn register(address: *mut c_void, bytes: usize, flags: c_uint, caller: usize) -> R {
    let driver = driver()?;
    let context = current()?;
    let base = address as u64;
    if address.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0 || base.checked_add(bytes as u64).is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if flags & ABSENT_REGISTER_FLAGS != 0 {
        crate::ffi::tell("cuMemHostRegister");
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if is_of_nccl(caller) {
        return super::refused::nccl();
    }
    let is_host = driver.memory.find(base).is_some_and(|allocation| allocation.kind.is_host());
    if driver.memory.is_device_address(base) && !is_host {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if driver.memory.overlaps(base, bytes as u64) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let kind = Kind::Registered { flags };
    driver.memory.adopt(base, bytes as u64, kind, context.device.ordinal, context.id)
}

export_with_caller! {
    fn cuMemHostRegister(address, bytes, flags) = register_for_caller;
}

export_with_caller! {
    fn cuMemHostRegister_v2(address, bytes, flags) = register_for_caller;
}

extern "C" fn register_for_caller(address: *mut c_void, bytes: usize, flags: c_uint, caller: usize) -> CUresult {
    let code = edge(|| register(address, bytes, flags, caller));
    if code == CUDA_ERROR_NOT_SUPPORTED {
        report::refused("cuMemHostRegister");
    }
    code
}

entry_points! {
    fn cuMemHostAlloc(address: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        allocate(address, bytes, flags)
    }

    fn cuMemAllocHost_v2(address: Out<*mut c_void>, bytes: usize) {
        allocate(address, bytes, 0)
    }

    fn cuMemFreeHost(address: *mut c_void) {
        let driver = driver()?;
        current()?;
        if address.is_null() {
            return Ok(());
        }
        let allocation = driver.memory.find(address as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        driver.graphs.check_call()?;
        driver.wait_before_free(&allocation);
        let pinned = |kind| matches!(kind, Kind::Pinned { .. });
        driver.memory.release(address as u64, |a| a.id == allocation.id && pinned(a.kind)).map(drop)
    }

    fn cuMemHostUnregister(address: *mut c_void) {
        let driver = driver()?;
        current()?;
        let unknown = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let allocation = driver.memory.find(address as u64).ok_or(unknown)?;
        driver.graphs.check_call()?;
        driver.wait_before_free(&allocation);
        let registered = |kind| matches!(kind, Kind::Registered { .. });
        driver.memory.release(address as u64, |a| a.id == allocation.id && registered(a.kind)).map(drop).map_err(|_| unknown)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, address: *mut c_void, flags: c_uint) {
        let driver = driver()?;
        current()?;
        super::handles::no_flags(flags.into())?;
        let known = driver.memory.find(address as u64).filter(|a| a.kind.is_host() && a.kind != Kind::Managed);
        known.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        device.set(address as u64)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, address: *mut c_void) {
        let driver = driver()?;
        current()?;
        match driver.memory.find(address as u64).map(|a| a.kind) {
            Some(Kind::Pinned { flags: set } | Kind::Registered { flags: set }) => flags.set(set),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
