//! The entry points for virtual memory management, such as `cuMemCreate` and `cuMemMap`.

use super::entry::entry_points;
use crate::driver::{Driver, current, driver};
use crate::ffi::{In, Out, R, descriptor};
use crate::memory::arena::GRANULARITY;
use crate::memory::writes;
use crate::process::handles;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::host_memory::is_place_on_host;
use driverapi::types::*;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

/// Returns the device of an allocation request. Only pinned device memory is supported.
fn device_of(driver: &Driver, properties: &CUmemAllocationProp) -> R<usize> {
    match (properties.type_, properties.location.type_) {
        (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE) => (),
        (CU_MEM_ALLOCATION_TYPE_MANAGED, _)
        | (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) => {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    if !matches!(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(driver.device(properties.location.id)?.ordinal)
}

/// Whether host memory is requested, in one of the ways that CUDA documents
/// (<https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html>, `cuMemCreate`).
fn is_host(properties: &CUmemAllocationProp) -> R<bool> {
    let shared = properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    match properties.location.type_ {
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Err(CUDA_ERROR_INVALID_VALUE),
        CU_MEM_LOCATION_TYPE_HOST if shared => Err(CUDA_ERROR_INVALID_VALUE),
        location => Ok(matches!(location, CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA)),
    }
}

/// Returns the device that a location names, or `None` for host memory.
fn device_at(driver: &Driver, location: &CUmemLocation) -> R<Option<usize>> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(Some(driver.device(location.id)?.ordinal)),
        _ if is_place_on_host(location) => Ok(None),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

entry_points! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: CUmemAllocationGranularity_flags,
    ) {
        driver()?;
        let properties = properties.get()?;
        // Host memory has a granularity too, even where `cuMemCreate` refuses to create it.
        if properties.type_ != CU_MEM_ALLOCATION_TYPE_PINNED || !is_host(&properties)? {
            device_of(driver()?, &properties)?;
        }
        if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize)
    }

    fn cuMemAddressReserve(
        address: Out<CUdeviceptr>, size: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong,
    ) {
        let driver = driver()?;
        let address = address.required()?;
        super::handles::no_flags(flags)?;
        address.set(driver.reserve_addresses(size as u64, alignment as u64, hint)?)
    }

    fn cuMemAddressFree(address: CUdeviceptr, size: usize) {
        driver()?.free_addresses(address, size as u64)
    }

    fn cuMemCreate(
        out: Out<CUmemGenericAllocationHandle>, size: usize, properties: In<CUmemAllocationProp>, flags: c_ulonglong,
    ) {
        let driver = driver()?;
        let out = out.required()?;
        super::handles::no_flags(flags)?;
        let properties = properties.get()?;
        if properties.type_ == CU_MEM_ALLOCATION_TYPE_PINNED && is_host(&properties)? {
            if properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE {
                crate::ffi::tell("cuMemCreate of host memory that can be exported");
            return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            if !is_place_on_host(&properties.location) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let id = handles::mint();
            driver.create_on_host(id, properties.location, size as u64)?;
            return out.set(id as u64);
        }
        let device = device_of(driver, &properties)?;
        let shareable = properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let id = handles::mint();
        driver.create_physical(id, device, size as u64, shareable)?;
        out.set(id as u64)
    }

    fn cuMemRelease(physical: CUmemGenericAllocationHandle) {
        driver()?.release_physical(physical as usize)
    }

    fn cuMemMap(
        address: CUdeviceptr, size: usize, offset: usize, physical: CUmemGenericAllocationHandle, flags: c_ulonglong,
    ) {
        let driver = driver()?;
        super::handles::no_flags(flags)?;
        driver.map_physical(address, size as u64, offset as u64, physical as usize)
    }

    fn cuMemUnmap(address: CUdeviceptr, size: usize) {
        driver()?.unmap_physical(address, size as u64)
    }

    fn cuMemSetAccess(address: CUdeviceptr, size: usize, list: In<CUmemAccessDesc>, count: usize) {
        let driver = driver()?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for access in list.list(count)? {
            match device_at(driver, &access.location)? {
                Some(device) => driver.set_access(address, size as u64, device, access.flags)?,
                None => driver.set_host_access(address, size as u64, access.flags)?,
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<CUmemLocation>, address: CUdeviceptr) {
        let driver = driver()?;
        flags.set(driver.access(address, device_at(driver, &location.get()?)?)?.into())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        properties: Out<CUmemAllocationProp>, physical: CUmemGenericAllocationHandle,
    ) {
        let physical = driver()?.physical(physical as usize)?;
        properties.set(CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: match physical.shareable {
                true => CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                false => CU_MEM_HANDLE_TYPE_NONE,
            },
            location: physical.location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocFlags::default(),
        })
    }

    fn cuMemExportToShareableHandle(
        out: Out<c_int>, physical: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong,
    ) {
        let driver = driver()?;
        let out = out.required()?;
        super::handles::no_flags(flags)?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if driver.physical(physical as usize)?.is_host() {
            crate::ffi::tell("cuMemExportToShareableHandle of host memory");
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        out.set(driver.export_physical(physical as usize)?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(
        out: Out<CUmemGenericAllocationHandle>, shared: *mut c_void, kind: CUmemAllocationHandleType,
    ) {
        let driver = driver()?;
        let out = out.required()?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let id = handles::mint();
        driver.import_physical(id, descriptor(shared)?)?;
        out.set(id as u64)
    }

    fn cuMemRetainAllocationHandle(out: Out<CUmemGenericAllocationHandle>, address: *mut c_void) {
        let driver = driver()?;
        current()?;
        let out = out.required()?;
        let physical = driver.physical_at(address as u64)?;
        driver.retain_physical(physical)?;
        out.set(physical as u64)
    }
}

entry_points! {
    /// Marks the bounds of one allocation. This function is not part of CUDA. A worker calls it when several
    /// allocations of a session share one piece of memory (`CHECKS_BOUNDS`).
    fn remotegpu_bound(address: CUdeviceptr, len: usize) {
        driver()?.bound(address, len as u64)
    }

    /// Starts to track writes. This function is not part of CUDA. A worker calls it to tell its client which memory
    /// changes. `pagemap` is a descriptor of `driverapi::written::PAGEMAP`.
    fn remotegpu_follow_writes(pagemap: *mut c_void) {
        driver()?;
        writes::follow(descriptor(pagemap)?.try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?)
    }

    /// Stores the parts of a range that were written since the last call. This function is not part of CUDA. Each part
    /// is its first and last address, in ascending order. `count` holds the capacity of `parts` and receives the number
    /// of parts. If there are too many parts, the last element covers the rest.
    fn remotegpu_written(parts: Out<[u64; 2]>, count: Out<usize>, address: CUdeviceptr, len: usize) {
        let most = count.get()?;
        let start = address as usize;
        let mut found = writes::taken(start..start.checked_add(len).ok_or(CUDA_ERROR_INVALID_VALUE)?)?;
        if let Some(end) = found.last().map(|last| last.end).filter(|_| found.len() > most) {
            found.truncate(most);
            found.last_mut().ok_or(CUDA_ERROR_INVALID_VALUE)?.end = end;
        }
        count.set(found.len())?;
        parts.set_all(found.into_iter().map(|part| [part.start as u64, part.end as u64]))
    }
}
