//! Launches and occupancy.

use super::kernels::function;
use super::{DefaultStream, entry_points, stream_entry_points};
use crate::device::*;
use crate::driver::{current, driver};
use crate::ffi::{In, Out, R};
use crate::launch::{Shape, arguments, blocks_per_multiprocessor, max_dynamic_shared, max_threads};
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{c_int, c_uint, c_void};

fn launch(
    default: DefaultStream,
    which: CUfunction,
    shape: Shape,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> R {
    let function = function(which)?;
    driver()?.launch(&function, shape, arguments(params, extra), &default.resolve(stream)?)
}

/// Attributes that only tune are accepted; those that change what a kernel may rely on are refused.
fn check_attribute(attribute: &CUlaunchAttribute) -> R {
    // SAFETY: every bit pattern is a valid value of these plain integers.
    let (switch, cluster) = unsafe { (attribute.value.scalar, attribute.value.clusterDim) };
    match attribute.id {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE if switch != 0 => Err(CUDA_ERROR_NOT_SUPPORTED),
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION if cluster != Dim3 { x: 1, y: 1, z: 1 } => Err(CUDA_ERROR_NOT_SUPPORTED),
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
        | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
        | CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

stream_entry_points! { default;
    fn cuLaunchKernel / cuLaunchKernel_ptsz(
        which: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(default, which, Shape { grid, block, dynamic_shared: shared }, stream, params, extra)
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz(
        config: In<CUlaunchConfig>, which: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        current()?;
        let config = config.get()?;
        if config.numAttrs > 0 {
            In::at(config.attrs.cast_const()).list(config.numAttrs as usize)?.iter().try_for_each(check_attribute)?;
        }
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            dynamic_shared: config.sharedMemBytes,
        };
        launch(default, which, shape, config.hStream, params, extra)
    }
}

fn active_blocks(blocks: Out<c_int>, which: CUfunction, block: c_int, shared: usize) -> R {
    let function = function(which)?;
    let block = u32::try_from(block).ok().filter(|&n| n > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    blocks.set(blocks_per_multiprocessor(function.kernel(), &function.settings, block, shared as u64) as c_int)
}

/// The block size with the most threads at work, the largest of those; and the grid that fills the device with it.
fn best_block(
    grid: Out<c_int>,
    block: Out<c_int>,
    which: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> R {
    let function = function(which)?;
    let kernel = function.kernel();
    let limit = match u32::try_from(limit) {
        Ok(limit) if limit > 0 => limit.min(max_threads(kernel)),
        _ => max_threads(kernel),
    };
    let sizes = (1..=limit / WARP).rev().map(|warps| warps * WARP).chain((limit < WARP).then_some(limit));
    let mut best = (0, 0, 0);
    for size in sizes {
        // SAFETY: the program gave this function for this question.
        let needed = shared_of.map_or(shared, |function| unsafe { function(size as c_int) });
        let blocks = blocks_per_multiprocessor(kernel, &function.settings, size, needed as u64);
        if size * blocks > best.0 {
            best = (size * blocks, size, blocks);
        }
    }
    grid.set((best.2 * MULTIPROCESSORS) as c_int)?;
    block.set(best.1 as c_int)
}

entry_points! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<c_int>, which: CUfunction, block: c_int, shared: usize) {
        active_blocks(blocks, which, block, shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, which: CUfunction, block: c_int, shared: usize, _flags: c_uint,
    ) {
        active_blocks(blocks, which, block, shared)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>, block: Out<c_int>, which: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize,
        limit: c_int,
    ) {
        best_block(grid, block, which, shared_of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>, block: Out<c_int>, which: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize,
        limit: c_int, _flags: c_uint,
    ) {
        best_block(grid, block, which, shared_of, shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, which: CUfunction, blocks: c_int, block: c_int) {
        let function = function(which)?;
        if blocks <= 0 || block <= 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let kernel = function.kernel();
        let each = (SHARED_PER_MULTIPROCESSOR / blocks as u32).saturating_sub(SHARED_RESERVED_PER_BLOCK);
        let left = each.saturating_sub(kernel.static_shared).min(max_dynamic_shared(kernel, &function.settings));
        bytes.set(left as usize)
    }
}
