//! The entry points for stream-ordered allocation and for memory pools.

use super::graph_nodes::free_work;
use crate::Code;
use crate::boundary::DefaultStream;
use crate::boundary::{input, inputs, refused, write};
use crate::devices;
use crate::devices::memory::{Origin, find_allocation};
use crate::graphs::graph::{self, GRAPHS, Work};
use crate::objects::pool::{self, Pool};
use crate::objects::stream;
use crate::session::lock;
use crate::{exports, stream_exports};
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::{CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUstream};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

stream_exports! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(address: *mut CUdeviceptr, size: usize, stream: CUstream) |default| {
        allocate(address, size, None, stream, default)
    }

    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(
        address: *mut CUdeviceptr,
        size: usize,
        pool: CUmemoryPool,
        stream: CUstream,
    ) |default| {
        allocate(address, size, Some(pool::get(pool)?), stream, default)
    }

    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) |default| {
        let target = stream::resolve(stream, default)?;
        if graph::capture(&target, || free_work(address))? || address == 0 {
            return Ok(());
        }
        if let Some(freed) = GRAPHS.memories.free(address) {
            return freed;
        }
        let (device, piece) = find_allocation(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // A stream can reuse memory that was freed on it at once only if the fence belongs to the same session.
        let owner = device.memory.owner(&piece).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let same = Arc::ptr_eq(&owner.session, &target.live.session);
        device.memory.free(address, same.then_some((&target.live, target.stream_id)))
    }
}

exports! {
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) {
        write(pool, without_provenance_mut(pool::of_device(devices::get(device)?)?.default.handle))
    }

    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) {
        write(pool, without_provenance_mut(lock(&pool::of_device(devices::get(device)?)?.current).handle))
    }

    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) {
        let (device, pool) = (devices::get(device)?, pool::get(pool)?);
        if pool.ordinal != device.ordinal {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *lock(&pool::of_device(device)?.current) = pool;
        Ok(())
    }

    fn cuMemSetMemPool(location: *mut CUmemLocation, kind: c_uint, pool: CUmemoryPool) {
        let (device, pool) = (pool_device(input(location)?, kind)?, pool::get(pool)?);
        if pool.ordinal != device.ordinal {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *lock(&pool::of_device(device)?.current) = pool;
        Ok(())
    }

    fn cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint) {
        let device = pool_device(input(location)?, kind)?;
        write(pool, without_provenance_mut(pool::of_device(device)?.default.handle))
    }

    fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint) {
        let device = pool_device(input(location)?, kind)?;
        write(pool, without_provenance_mut(lock(&pool::of_device(device)?.current).handle))
    }

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) {
        let properties = input(properties)?;
        if pool.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = pool_device(properties.location, properties.allocType)?;
        if properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE {
            return refused("memory pools that are shared between processes");
        }
        let made = pool::create(device.ordinal, properties.maxSize as u64)?;
        write(pool, without_provenance_mut(made.handle))
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) { pool::destroy(pool) }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        let device = pool::get(pool)?.device()?;
        match device.primary.live() {
            Ok(live) => device.memory.trim(&live),
            // The device has no primary context, so nothing was allocated through it. Other contexts trim themselves.
            Err(_) => Ok(()),
        }
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize) {
        let pool = pool::get(pool)?;
        for entry in inputs(access, count)? {
            if entry.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let device = devices::get(entry.location.id)?;
            let own = device.ordinal == pool.ordinal;
            match entry.flags {
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE if own => {}
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE => pool.allow(device)?,
                CU_MEM_ACCESS_FLAGS_PROT_NONE if !own => pool.forbid(device)?,
                _ => return Err(CUDA_ERROR_INVALID_DEVICE),
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: *mut c_uint, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let (pool, location) = (pool::get(pool)?, input(location)?);
        if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let ordinal = devices::get(location.id)?.ordinal;
        let allowed = ordinal == pool.ordinal || pool.readers.lock().contains_key(&ordinal);
        write(flags, if allowed { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void) {
        let pool = pool::get(pool)?;
        let mut settings = lock(&pool.settings);
        match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => settings.follow_events = flag(value)?,
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => settings.opportunistic = flag(value)?,
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => settings.internal_dependencies = flag(value)?,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => settings.release_threshold = input(value.cast::<u64>().cast_const())?,
            // Peak values can only be reset to 0.
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if input(value.cast::<u64>().cast_const())? == 0 => {
                settings.highest_reserved = 0;
            }
            CU_MEMPOOL_ATTR_USED_MEM_HIGH if input(value.cast::<u64>().cast_const())? == 0 => {
                settings.highest_used = 0;
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void) {
        let pool = pool::get(pool)?;
        let used = pool.used()?;
        let settings = *lock(&pool.settings);
        let int = |number: u32| write(value.cast::<c_int>(), number as c_int);
        let word = |number: u64| write(value.cast::<u64>(), number);
        match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => int(settings.follow_events),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => int(settings.opportunistic),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => int(settings.internal_dependencies),
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => word(settings.release_threshold),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | CU_MEMPOOL_ATTR_USED_MEM_CURRENT => word(used),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => word(settings.highest_reserved.max(used)),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => word(settings.highest_used.max(used)),
            CU_MEMPOOL_ATTR_ALLOCATION_TYPE => int(CU_MEM_ALLOCATION_TYPE_PINNED),
            CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => int(CU_MEM_HANDLE_TYPE_NONE),
            CU_MEMPOOL_ATTR_LOCATION_ID => int(pool.ordinal as u32),
            CU_MEMPOOL_ATTR_LOCATION_TYPE => int(CU_MEM_LOCATION_TYPE_DEVICE),
            CU_MEMPOOL_ATTR_MAX_POOL_SIZE => word(pool.max_size),
            CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => int(0),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

unsafe fn flag(value: *mut c_void) -> Result<u32, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let value = unsafe { input(value.cast::<c_int>().cast_const())? };
    Ok(u32::from(value != 0))
}

/// Returns the device of a pool. Only memory of a device can be pooled.
fn pool_device(location: CUmemLocation, kind: c_uint) -> Result<&'static devices::Device, Code> {
    if kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => devices::get(location.id),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        | CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            refused("memory pools outside a device").and(Err(CUDA_ERROR_NOT_SUPPORTED))
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

unsafe fn allocate(
    to: *mut CUdeviceptr,
    size: usize,
    pool: Option<Arc<Pool>>,
    stream: CUstream,
    default: DefaultStream,
) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    if to.is_null() || size == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut memory = None;
    let node = || Ok(Work::Allocate(Arc::clone(memory.insert(graph::allocate(&target.live, size as u64)?))));
    if graph::capture(&target, node)? {
        let address = memory.map_or(0, |memory| memory.address);
        // SAFETY: as the caller of the exported function vouches.
        return unsafe { write(to, address) };
    }
    let device = target.live.device;
    let pool = match pool {
        Some(pool) => pool,
        None => Arc::clone(&lock(&pool::of_device(device)?.current)),
    };
    if pool.ordinal != device.ordinal {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    pool.admit(size as u64)?;
    let origin = Origin { stream_id: Some(target.stream_id), pool: pool.id };
    let address = device.memory.allocate(&target.live, size as u64, origin)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, address) }
}
