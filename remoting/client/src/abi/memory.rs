//! The entry points for device memory.

use crate::Code;
use crate::boundary::{write, write_optional};
use crate::copies::peer;
use crate::devices::context;
use crate::devices::memory::{Origin, find_allocation};
use crate::exports;
use crate::graphs::graph::GRAPHS;
use crate::memory::host::HostKind;
use crate::memory::vmm;
use crate::memory::{host, managed};
use driverapi::errors::*;
use driverapi::types::CUdeviceptr;
use std::ffi::c_uint;

/// The alignment in bytes of the rows of `cuMemAllocPitch`.
const PITCH_ALIGN: usize = 512;

exports! {
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) {
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(address, allocate(size)?)
    }

    fn cuMemAllocPitch_v2(
        address: *mut CUdeviceptr,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: c_uint,
    ) {
        if address.is_null() || pitch.is_null() || width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH_ALIGN).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let size = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        write(address, allocate(size)?)?;
        write(pitch, row)
    }

    fn cuMemFree_v2(address: CUdeviceptr) {
        context::current()?;
        if address == 0 {
            return Ok(());
        }
        if let Some(freed) = GRAPHS.memories.free(address) {
            return freed;
        }
        let of_host = host::find(address as usize);
        if of_host.is_some_and(|range| range.kind == HostKind::Managed) {
            GRAPHS.check_call()?;
            return managed::free(address as usize);
        }
        let allocation = find_allocation(address).filter(|_| of_host.is_none());
        let (device, piece) = allocation.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        GRAPHS.check_call()?;
        peer::wait_until_read(piece.address, piece.address + piece.size);
        device.memory.free(address, None)
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let live = context::current()?;
        let (free_bytes, total_bytes) = live.device.memory.info(&live)?;
        write_optional(free, free_bytes as usize);
        write_optional(total, total_bytes as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) {
        context::current()?;
        let allocated = || find_allocation(address).map(|(_, piece)| piece);
        let mapped = || vmm::mapping(address).map(|(piece, _)| piece);
        let of_device = || allocated().or_else(mapped).map(|piece| (piece.address, piece.asked as usize));
        let of_host = host::find(address as usize).filter(|range| range.kind != HostKind::Created);
        let of_host = of_host.map(|range| (range.start as u64, range.size));
        let (start, len) = of_host.or_else(of_device).ok_or(CUDA_ERROR_NOT_FOUND)?;
        write_optional(base, start);
        write_optional(size, len);
        Ok(())
    }
}

fn allocate(size: usize) -> Result<CUdeviceptr, Code> {
    let live = context::current()?;
    GRAPHS.check_call()?;
    live.device.memory.allocate(&live, size as u64, Origin::default())
}
