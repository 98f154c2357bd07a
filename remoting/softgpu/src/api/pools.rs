//! The entry points for stream-ordered allocation, such as `cuMemAllocAsync` and `cuMemPoolCreate`.

use super::entry::{entry_points, stream_entry_points};
use super::graph_nodes::{allocate, free_work};
use super::handles::{handle, id};
use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, R};
use crate::memory::pool::{Pool, Usage};
use crate::process::handles;
use crate::streams::stream::Stream;
use crate::work::Work;
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn pool(driver: &Driver, pool: CUmemoryPool) -> R<Arc<Pool>> {
    let found = driver.pools.get(id(pool)).filter(|pool| !pool.destroyed.load(Ordering::Acquire));
    found.ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Returns the device of a location. Fails for host memory, because it has no pools.
fn device_at(driver: &Driver, location: CUmemLocation) -> R<usize> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(driver.device(location.id)?.ordinal),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        | CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn pinned_type(kind: CUmemAllocationType) -> R {
    match kind {
        CU_MEM_ALLOCATION_TYPE_PINNED => Ok(()),
        CU_MEM_ALLOCATION_TYPE_MANAGED => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn set_current(driver: &Driver, device: usize, pool: &Pool) -> R {
    if pool.device != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    *driver.current_pool(&driver.devices[device]) = pool.id;
    Ok(())
}

/// Whether an attribute is a switch. Switches are 4 bytes wide, all other attributes 8.
fn is_switch(attribute: CUmemPool_attribute) -> bool {
    (CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES..=CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        .contains(&attribute)
}

entry_points! {
    fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool>, device: CUdevice) {
        out.set(handle(driver()?.device(device)?.pool))
    }

    fn cuDeviceGetMemPool(out: Out<CUmemoryPool>, device: CUdevice) {
        let driver = driver()?;
        let current = *driver.current_pool(driver.device(device)?);
        out.set(handle(current))
    }

    fn cuDeviceSetMemPool(device: CUdevice, to: CUmemoryPool) {
        let driver = driver()?;
        set_current(driver, driver.device(device)?.ordinal, &*pool(driver, to)?)
    }

    fn cuMemGetDefaultMemPool(out: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: CUmemAllocationType) {
        let driver = driver()?;
        pinned_type(kind)?;
        out.set(handle(driver.devices[device_at(driver, location.get()?)?].pool))
    }

    fn cuMemGetMemPool(out: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: CUmemAllocationType) {
        let driver = driver()?;
        pinned_type(kind)?;
        let current = *driver.current_pool(&driver.devices[device_at(driver, location.get()?)?]);
        out.set(handle(current))
    }

    fn cuMemSetMemPool(location: In<CUmemLocation>, kind: CUmemAllocationType, to: CUmemoryPool) {
        let driver = driver()?;
        pinned_type(kind)?;
        set_current(driver, device_at(driver, location.get()?)?, &*pool(driver, to)?)
    }

    fn cuMemPoolCreate(out: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) {
        let driver = driver()?;
        let out = out.required()?;
        let properties = properties.get()?;
        pinned_type(properties.allocType)?;
        if properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = device_at(driver, properties.location)?;
        let number = handles::mint();
        driver.pools.insert(number, Arc::new(Pool::new(number, device, properties.maxSize as u64)));
        out.set(handle(number))
    }

    fn cuMemPoolDestroy(which: CUmemoryPool) {
        let driver = driver()?;
        driver.destroy_pool(&pool(driver, which)?)
    }

    /// A pool never keeps unused memory, so there is nothing to trim.
    fn cuMemPoolTrimTo(which: CUmemoryPool, _keep: usize) {
        pool(driver()?, which).map(drop)
    }

    fn cuMemPoolSetAttribute(which: CUmemoryPool, attribute: CUmemPool_attribute, value: In<c_void>) {
        let pool = pool(driver()?, which)?;
        let long = || In::at(value.address().cast::<u64>()).get();
        match attribute {
            _ if is_switch(attribute) => {
                let value = In::at(value.address().cast::<u32>()).get()?;
                pool.settings().insert(attribute, value.into());
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => drop(pool.settings().insert(attribute, long()?)),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH if long()? == 0 => {
                let mut usage = pool.usage();
                usage.high = usage.used;
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(which: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>) {
        let pool = pool(driver()?, which)?;
        let Usage { used, high } = *pool.usage();
        let word: Out<u32> = Out::at(value.address().cast());
        let long: Out<u64> = Out::at(value.address().cast());
        match attribute {
            _ if is_switch(attribute) => word.set(pool.settings().get(&attribute).map_or(1, |&v| v as u32)),
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => long.set(pool.settings().get(&attribute).copied().unwrap_or(0)),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | CU_MEMPOOL_ATTR_USED_MEM_CURRENT => long.set(used),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => long.set(high),
            CU_MEMPOOL_ATTR_ALLOCATION_TYPE => word.set(CU_MEM_ALLOCATION_TYPE_PINNED),
            CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => word.set(CU_MEM_HANDLE_TYPE_NONE),
            CU_MEMPOOL_ATTR_LOCATION_ID => word.set(pool.device as u32),
            CU_MEMPOOL_ATTR_LOCATION_TYPE => word.set(CU_MEM_LOCATION_TYPE_DEVICE),
            CU_MEMPOOL_ATTR_MAX_POOL_SIZE => long.set(pool.max_bytes),
            CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => word.set(0),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(which: CUmemoryPool, list: In<CUmemAccessDesc>, count: usize) {
        let driver = driver()?;
        let pool = pool(driver, which)?;
        for access in list.list(count)? {
            let device = device_at(driver, access.location)?;
            let own = device == pool.device;
            match access.flags {
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE if own => (),
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE => driver.set_pool_access(&pool, device, true),
                CU_MEM_ACCESS_FLAGS_PROT_NONE if !own => driver.set_pool_access(&pool, device, false),
                // The access of a device to its own pool cannot be removed.
                _ => return Err(CUDA_ERROR_INVALID_DEVICE),
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<CUmemAccess_flags>, which: CUmemoryPool, location: In<CUmemLocation>) {
        let driver = driver()?;
        let (pool, device) = (pool(driver, which)?, device_at(driver, location.get()?)?);
        let allowed = device == pool.device || pool.peers().contains(&device);
        flags.set(if allowed { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })
    }
}

/// Returns the address of an allocation node that was added to the capture, or `None` if the stream is not being
/// captured.
fn captured(driver: &'static Driver, stream: &Stream, bytes: usize) -> R<Option<u64>> {
    let mut memory = None;
    let node = || Ok(Work::Allocate(Arc::clone(memory.insert(allocate(driver, &stream.context, bytes as u64)?))));
    driver.graphs.capture(stream.for_capture(), node)?;
    Ok(memory.map(|memory| memory.address))
}

stream_entry_points! { default;
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz(address: Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        let driver = driver()?;
        let stream = default.resolve(stream)?;
        let address = address.required()?;
        if let Some(captured) = captured(driver, &stream, bytes)? {
            return address.set(captured);
        }
        let current = *driver.current_pool(&stream.context.device);
        let pool = driver.pools.get(current).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        address.set(driver.allocate_from(&pool, bytes as u64, &stream)?.base)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz(
        address: Out<CUdeviceptr>, bytes: usize, from: CUmemoryPool, stream: CUstream,
    ) {
        let driver = driver()?;
        let stream = default.resolve(stream)?;
        let address = address.required()?;
        let pool = pool(driver, from)?;
        if let Some(captured) = captured(driver, &stream, bytes)? {
            return address.set(captured);
        }
        address.set(driver.allocate_from(&pool, bytes as u64, &stream)?.base)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) {
        let driver = driver()?;
        let stream = default.resolve(stream)?;
        let node = || free_work(driver, address);
        if driver.graphs.capture(stream.for_capture(), node)? || address == 0 {
            return Ok(());
        }
        if let Some(freed) = driver.graphs.memories.free(address) {
            return freed;
        }
        driver.free_in_order(address, &stream)
    }
}
