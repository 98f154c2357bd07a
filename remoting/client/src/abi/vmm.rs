//! The entry points for virtual memory management.

use crate::Code;
use crate::boundary::{descriptor, input, inputs, refused, write};
use crate::devices::ticket::{self, Ticket};
use crate::devices::{self, context};
use crate::exports;
use crate::memory::vmm;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::host_memory::is_place_on_host;
use driverapi::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocFlags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;

exports! {
    fn cuMemAddressReserve(address: *mut CUdeviceptr, size: usize, align: usize, wanted: CUdeviceptr, flags: u64) {
        let live = context::any()?;
        if address.is_null() || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(address, vmm::reserve(&live, size as u64, align as u64, wanted)?)
    }

    fn cuMemAddressFree(address: CUdeviceptr, size: usize) {
        devices::all()?;
        vmm::free(address, size as u64)
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        properties: *const CUmemAllocationProp,
        flags: u64,
    ) {
        let properties = input(properties)?;
        if handle.is_null() || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let made = match is_host(&properties)? && properties.type_ == CU_MEM_ALLOCATION_TYPE_PINNED {
            true => vmm::create_on_host(size as u64, on_host(properties)?)?,
            false => vmm::create(device_of(&properties)?, size as u64, properties)?,
        };
        write(handle, made.handle as u64)
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) { vmm::release(handle) }

    fn cuMemMap(
        address: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        vmm::map(address, size as u64, offset as u64, handle)
    }

    fn cuMemUnmap(address: CUdeviceptr, size: usize) {
        devices::all()?;
        vmm::unmap(address, size as u64)
    }

    fn cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize) {
        devices::all()?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for entry in inputs(access, count)? {
            let device = device_at(&entry.location)?;
            let accessible = match entry.flags {
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE => true,
                CU_MEM_ACCESS_FLAGS_PROT_NONE => false,
                CU_MEM_ACCESS_FLAGS_PROT_READ => return refused("cuMemSetAccess for reading only"),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            };
            vmm::set_access(address, size as u64, device, accessible)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr) {
        let location = input(location)?;
        devices::all()?;
        let user = device_at(&location)?.map_or(vmm::User::Host, |device| vmm::User::Device(device.ordinal));
        let accessible = vmm::access(address, user)?;
        let value = if accessible { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE };
        write(flags, u64::from(value))
    }

    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        option: c_uint,
    ) {
        let properties = input(properties)?;
        // NCCL makes this query for host memory before it tests whether host memory is supported, and misinterprets an
        // error.
        let device = match is_host(&properties)? {
            true => devices::get(0)?,
            false => device_of(&properties)?,
        };
        if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(granularity, device.session()?.arena().granularity() as usize)
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        properties: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ) {
        write(properties, vmm::get(handle)?.properties.0)
    }

    fn cuMemExportToShareableHandle(
        shared: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: c_uint,
        flags: u64,
    ) {
        devices::all()?;
        if shared.is_null() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (token, allocation) = vmm::export(handle)?;
        let (device, numbers) = (allocation.device.info.uuid, [allocation.size, 0, 0]);
        let ticket = Ticket { kind: ticket::Kind::Physical, token, device, numbers };
        write(shared.cast::<c_int>(), ticket.file()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        shared: *mut c_void,
        kind: c_uint,
    ) {
        let all = devices::all()?;
        if handle.is_null() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Ticket { token, device: uuid, numbers: [size, ..], .. } =
            Ticket::read(ticket::Kind::Physical, descriptor(shared)?)?;
        let device = all.iter().find(|device| device.info.uuid == uuid).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device.ordinal },
            win32HandleMetaData: null_mut(),
            allocFlags: CUmemAllocFlags::default(),
        };
        write(handle, vmm::import(device, token, properties, size)?)
    }

    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) {
        devices::all()?;
        if handle.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(handle, vmm::retain(address.addr() as u64)? as u64)
    }
}

/// Returns whether the program requests host memory, in one of the ways that CUDA documents
/// (<https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html>, `cuMemCreate`).
fn is_host(properties: &CUmemAllocationProp) -> Result<bool, Code> {
    devices::all()?;
    let shared = properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    match properties.location.type_ {
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Err(CUDA_ERROR_INVALID_VALUE),
        CU_MEM_LOCATION_TYPE_HOST if shared => Err(CUDA_ERROR_INVALID_VALUE),
        location => Ok(matches!(location, CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA)),
    }
}

/// Checks a request for host memory. Host memory can be created, but not exported.
fn on_host(properties: CUmemAllocationProp) -> Result<CUmemAllocationProp, Code> {
    if properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE {
        return refused("cuMemCreate of host memory that can be exported").and(Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    if is_place_on_host(&properties.location) { Ok(properties) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Returns the device that a location names, or `None` for host memory.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for another kind of location.
fn device_at(location: &CUmemLocation) -> Result<Option<&'static devices::Device>, Code> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => devices::get(location.id).map(Some),
        _ if is_place_on_host(location) => Ok(None),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Returns the device of a request. Only ordinary device memory is supported; it can be exported as a file.
fn device_of(properties: &CUmemAllocationProp) -> Result<&'static devices::Device, Code> {
    devices::all()?;
    if properties.type_ != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match properties.location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => (),
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            return refused("cuMemCreate in a domain of a device").and(Err(CUDA_ERROR_NOT_SUPPORTED));
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    if !matches!(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return refused("cuMemCreate of memory that can be exported").and(Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    devices::get(properties.location.id)
}
