//! The entry points for kernel launches and occupancy queries.

use super::default_stream::DefaultStream;
use super::entry::{entry_points, stream_entry_points};
use super::handles::id;
use super::kernels::function;
use crate::driver::{current, driver};
use crate::engine::Kernel;
use crate::ffi::{In, Out, R};
use crate::kernels::code::{ClusterSettings, Function, Settings};
use crate::kernels::launch::{
    Shape, arguments, blocks_per_multiprocessor, cluster_of, largest_cluster, max_dynamic_shared, max_threads,
    with_attribute,
};
use crate::process::model::*;
use crate::streams::stream::{Event, Stream};
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::types::*;
use graphs::{Edge, LaunchEdges};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

pub fn launch(
    default: DefaultStream,
    which: CUfunction,
    shape: Shape,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    edges: &LaunchEdges,
) -> R<bool> {
    let driver = driver()?;
    let stream = default.resolve(stream)?;
    // The handle of a kernel means the kernel's function in the stream's context (see `cuLaunchKernel` in CUDA's
    // documentation).
    let function = driver.function_or_kernel(id(which), &stream.context)?;
    driver.launch(&function, shape, arguments(params, extra), &stream, edges)
}

/// Returns the events that a launch records, each with its kind of graph edge. The events complete when the kernel
/// completes, which CUDA allows for both kinds.
fn recorded(attributes: &[CUlaunchAttribute], stream: &Stream) -> R<Vec<(Arc<Event>, Edge)>> {
    let event = |attribute: &CUlaunchAttribute| {
        let (event, flags, edge) = match attribute.id {
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
                // SAFETY: as `with_attribute`; the handle is a number.
                let value = unsafe { attribute.value.programmaticEvent };
                let at_start = value.triggerAtBlockStart != 0;
                (value.event, value.flags, if at_start { Edge::AT_BLOCK_START } else { Edge::PROGRAMMATIC })
            }
            CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                // SAFETY: as above.
                let value = unsafe { attribute.value.launchCompletionEvent };
                (value.event, value.flags, Edge::LAUNCH_ORDER)
            }
            _ => return None,
        };
        Some(event_without_timing(event, flags, stream).map(|event| (event, edge)))
    };
    let events: Vec<_> = attributes.iter().filter_map(event).collect::<R<_>>()?;
    let twice = |(i, event): (usize, &Arc<Event>)| events[..i].iter().any(|(other, _)| Arc::ptr_eq(event, other));
    let twice = events.iter().map(|(event, _)| event).enumerate().any(twice);
    if twice { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(events) }
}

fn is_programmatic(attribute: &CUlaunchAttribute) -> bool {
    // SAFETY: as above.
    attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && unsafe { attribute.value.scalar } != 0
}

fn event_without_timing(handle: CUevent, flags: c_int, stream: &Stream) -> R<Arc<Event>> {
    let event = driver()?.events.get(id(handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    if event.timed || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if event.context == stream.context.id { Ok(event) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
}

fn shape_of(config: &CUlaunchConfig) -> R<Shape> {
    let shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        dynamic_shared: config.sharedMemBytes,
        cluster: None,
        cooperative: false,
    };
    attributes_of(config)?.iter().try_fold(shape, with_attribute)
}

fn attributes_of(config: &CUlaunchConfig) -> R<Vec<CUlaunchAttribute>> {
    match config.numAttrs {
        0 => Ok(Vec::new()),
        count => In::at(config.attrs.cast_const()).list(count as usize),
    }
}

stream_entry_points! { default;
    fn cuLaunchKernel / cuLaunchKernel_ptsz(
        which: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared: shared, cluster: None, cooperative: false };
        launch(default, which, shape, stream, params, extra, &LaunchEdges::default()).map(drop)
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz(
        which: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, dynamic_shared: shared, cluster: None, cooperative: true };
        launch(default, which, shape, stream, params, ptr::null_mut(), &LaunchEdges::default()).map(drop)
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz(
        config: In<CUlaunchConfig>, which: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let config = config.get()?;
        let (attributes, stream) = (attributes_of(&config)?, default.resolve(config.hStream)?);
        let events = recorded(&attributes, &stream)?;
        let edges = LaunchEdges {
            programmatic: attributes.iter().any(is_programmatic),
            events: events.iter().map(|(event, edge)| (event.id as u64, *edge)).collect(),
        };
        if launch(default, which, shape_of(&config)?, config.hStream, params, extra, &edges)? {
            return Ok(());
        }
        let driver = driver()?;
        events.iter().try_for_each(|(event, _)| {
            driver.graphs.ask(|captures| captures.record(event.id as u64, stream.for_capture()))?;
            event.record(&stream, driver.start)
        })
    }
}

fn active(function: &Function, threads: u32, dynamic_shared: u64) -> R<u32> {
    let model = driver()?.model();
    Ok(blocks_per_multiprocessor(function.kernel(), &function.settings, threads, dynamic_shared, model))
}

fn active_blocks(blocks: Out<c_int>, which: CUfunction, block: c_int, shared: usize) -> R {
    let function = function(which)?;
    let block = u32::try_from(block).ok().filter(|&n| n > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    blocks.set(active(&function, block, shared as u64)? as c_int)
}

/// Stores the block size with the most resident threads, and the grid that fills the device. Of several such block
/// sizes it takes the largest.
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
        // SAFETY: the program passed this function for exactly this call.
        let needed = shared_of.map_or(shared, |function| unsafe { function(size as c_int) });
        let blocks = active(&function, size, needed as u64)?;
        if size * blocks > best.0 {
            best = (size * blocks, size, blocks);
        }
    }
    grid.set((best.2 * driver()?.model().multiprocessors) as c_int)?;
    block.set(best.1 as c_int)
}

/// Evaluates a query about the clusters of a function. The function may be null: cuBLAS 13.10 queries the number of
/// clusters without a kernel, and needs a result to continue. Then only the device's limits apply. The result of
/// NVIDIA's driver for this case was not measured.
fn of_clusters<T>(which: CUfunction, answer: impl FnOnce(&Kernel, &Settings) -> R<T>) -> R<T> {
    if !which.is_null() {
        let function = function(which)?;
        return answer(function.kernel(), &function.settings);
    }
    current()?;
    let shared = driver()?.model().shared_per_multiprocessor.saturating_sub(SHARED_RESERVED_PER_BLOCK);
    let cluster = ClusterSettings { non_portable: 1.into(), ..ClusterSettings::default() };
    answer(
        &Kernel::of_nothing(),
        &Settings {
            dynamic_shared: (shared as i32).into(),
            carveout: (-1).into(),
            cache_config: 0.into(),
            cluster,
            max_registers: None,
        },
    )
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
        let each = (driver()?.model().shared_per_multiprocessor / blocks as u32).saturating_sub(SHARED_RESERVED_PER_BLOCK);
        let left = each.saturating_sub(kernel.static_shared).min(max_dynamic_shared(kernel, &function.settings));
        bytes.set(left as usize)
    }

    /// Clusters are not limited to parts of this device, so the result is the number of blocks that fit divided by the
    /// cluster's size. Without cluster support the same holds for two blocks, because cuTENSOR expects a newer GPU and
    /// queries the largest cluster.
    fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, which: CUfunction, config: In<CUlaunchConfig>) {
        let model = driver()?.model();
        let shape = shape_of(&config.get()?)?;
        let found = of_clusters(which, |kernel, settings| {
            let cluster = cluster_of(&shape, kernel, settings)?.iter().try_fold(1, |all, n| u32::checked_mul(all, *n));
            let each = blocks_per_multiprocessor(
                kernel, settings, shape.block.iter().product(), shape.dynamic_shared.into(), model,
            );
            match cluster {
                Some(0) => Err(CUDA_ERROR_INVALID_CLUSTER_SIZE),
                Some(blocks) if blocks <= largest_cluster(kernel, settings, model) => {
                    Ok(each * model.multiprocessors / blocks)
                }
                _ => Ok(0),
            }
        });
        clusters.set(found? as c_int)
    }

    fn cuOccupancyMaxPotentialClusterSize(size: Out<c_int>, which: CUfunction, config: In<CUlaunchConfig>) {
        let model = driver()?.model();
        if model.portable_cluster == 1 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let shape = shape_of(&config.get()?)?;
        let found = of_clusters(which, |kernel, settings| {
            let each = blocks_per_multiprocessor(
                kernel, settings, shape.block.iter().product(), shape.dynamic_shared.into(), model,
            );
            Ok(if each == 0 { 0 } else { largest_cluster(kernel, settings, model) })
        });
        size.set(found? as c_int)
    }
}
