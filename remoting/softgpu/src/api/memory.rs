//! The entry points for device memory, such as `cuMemAlloc`.

use super::entry::entry_points;
use crate::driver::{current, driver};
use crate::ffi::{Out, R};
use crate::memory::allocations::Kind;
use crate::process::model::PITCH_ALIGNMENT;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::c_uint;
use std::sync::PoisonError;

fn allocate(address: Out<CUdeviceptr>, bytes: u64) -> R {
    let context = current()?;
    let address = address.required()?;
    driver()?.graphs.check_call()?;
    let allocation = driver()?.memory.allocate(bytes, Kind::Device, context.device.ordinal, context.id)?;
    address.set(allocation.base)
}

entry_points! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = &current()?.device;
        free.set_if_wanted(device.free_bytes() as usize);
        total.set_if_wanted(device.memory as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(address: Out<CUdeviceptr>, bytes: usize) {
        allocate(address, bytes as u64)
    }

    fn cuMemAllocPitch_v2(
        address: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element: c_uint,
    ) {
        current()?;
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = (width as u64).checked_next_multiple_of(PITCH_ALIGNMENT).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let bytes = row.checked_mul(height as u64).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let pitch = pitch.required()?;
        allocate(address, bytes)?;
        pitch.set(row as usize)
    }

    fn cuMemFree_v2(address: CUdeviceptr) {
        let driver = driver()?;
        current()?;
        if address == 0 {
            return Ok(());
        }
        if let Some(freed) = driver.graphs.memories.free(address) {
            return freed;
        }
        let allocation = driver.memory.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let freeable = matches!(allocation.kind, Kind::Device | Kind::Managed | Kind::Pooled { .. }) && !allocation.freeing;
        if allocation.base != address || !freeable {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.graphs.check_call()?;
        driver.wait_before_free(&allocation);
        // Report an error of earlier work, as every call that waits does.
        current()?;
        driver.advised.lock().unwrap_or_else(PoisonError::into_inner).remove(&allocation.id);
        driver.release_memory(&allocation)
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr) {
        current()?;
        let allocation = driver()?.memory.find(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.set_if_wanted(allocation.base);
        size.set_if_wanted(allocation.len as usize);
        Ok(())
    }
}
