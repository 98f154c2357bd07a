//! The entry points for occupancy. The search for the best block size is the one that CUDA documents, and the device's
//! driver answers its queries.

use crate::boundary::write;
use crate::call::Call;
use crate::objects::library;
use crate::{Code, exports};
use driverapi::attributes::{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_WARP_SIZE};
use driverapi::constants::CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE;
use driverapi::errors::*;
use driverapi::types::{CUfunction, CUoccupancyB2DSize};
use protocol::function;
use std::ffi::{c_int, c_uint};

exports! {
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        function: CUfunction,
        shared_for: CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
    ) {
        search(grid, block, function, shared_for, shared, limit, 0)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int,
        block: *mut c_int,
        function: CUfunction,
        shared_for: CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        if flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        search(grid, block, function, shared_for, shared, limit, flags)
    }
}

unsafe fn search(
    grid: *mut c_int,
    block: *mut c_int,
    handle: CUfunction,
    shared_for: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Result<(), Code> {
    let function = library::function_or_kernel(handle)?;
    if grid.is_null() || block.is_null() || limit < 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    function.description()?;
    let device = function.module.live.device;
    let most = c_int::try_from(function.max_threads()).unwrap_or(c_int::MAX);
    let most = if limit == 0 { most } else { most.min(limit) };
    let warp = device.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE).max(1);
    let (mut best_threads, mut best_block, mut best_count) = (0, 0, 0);
    let mut size = most;
    while size > 0 {
        // SAFETY: the program gave this function to be called with block sizes.
        let dynamic = shared_for.map_or(shared, |ask| unsafe { ask(size) });
        let count = blocks_per_multiprocessor(handle, size, dynamic, flags)?;
        if count * size > best_threads {
            (best_threads, best_block, best_count) = (count * size, size, count);
        }
        // If a multiprocessor is full, no smaller block can be better.
        if best_threads >= device.attribute(driverapi::attributes::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) {
            break;
        }
        size = if size % warp == 0 { size - warp } else { size - size % warp };
    }
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        write(block, best_block)?;
        write(grid, best_count * device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT))
    }
}

fn blocks_per_multiprocessor(handle: CUfunction, block: c_int, shared: usize, flags: c_uint) -> Result<c_int, Code> {
    let number = function::CU_OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_MULTIPROCESSOR_WITH_FLAGS;
    let mut call = Call::on_function(number, handle)?;
    call.put(&block).put(&(shared as u64)).put(&flags);
    call.reply()?.decode::<i32>()
}
