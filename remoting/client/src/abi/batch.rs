//! Copies in batches. Each copy runs like a single copy, in the stream's order. The attributes are hints that allow
//! reading a source at other times, so reading it at the call or in stream order is always correct.

use super::copy::{anywhere, box_anywhere};
use crate::Code;
use crate::boundary::DefaultStream;
use crate::boundary::{input, inputs, write_optional};
use crate::stream_exports;
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use driverapi::errors::*;
use driverapi::types::{CUDA_MEMCPY3D_BATCH_OP, CUdeviceptr, CUmemcpyAttributes, CUstream};
use std::ffi::c_ulonglong;
use std::ptr;

/// The value of `failIdx` if no single copy is at fault.
const NO_COPY: usize = usize::MAX;

stream_exports! {
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        first_copies: *mut usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: CUstream,
    ) |default| {
        batch(to, from, sizes, count, stream, default).map_err(|(copy, code)| {
            write_optional(failed, copy);
            code
        })
    }

    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        first_copies: *mut usize,
        attribute_count: usize,
        stream: CUstream,
    ) |default| {
        batch(to, from, sizes, count, stream, default).map_err(|(_, code)| code)
    }

    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(
        to: CUdeviceptr,
        from: CUdeviceptr,
        size: usize,
        attributes: *mut CUmemcpyAttributes,
        stream: CUstream,
    ) |default| {
        input(attributes.cast_const())?;
        anywhere(stream, default, to, from, size)
    }

    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(
        count: usize,
        boxes: *mut CUDA_MEMCPY3D_BATCH_OP,
        failed: *mut usize,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        batch_of_boxes(count, boxes, flags, stream, default).map_err(|(copy, code)| {
            write_optional(failed, copy);
            code
        })
    }

    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(
        count: usize,
        boxes: *mut CUDA_MEMCPY3D_BATCH_OP,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        batch_of_boxes(count, boxes, flags, stream, default).map_err(|(_, code)| code)
    }

    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(
        copy: *mut CUDA_MEMCPY3D_BATCH_OP,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        let copy = input(copy.cast_const())?.as_box()?;
        if flags != 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { box_anywhere(stream, default, &copy) }
    }
}

/// Returns whether a stream accepts batches. CUDA documents that the default streams do not.
fn takes_batches(stream: CUstream) -> bool {
    ![ptr::null_mut(), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream)
}

/// Copies a batch of boxes, like [`batch`].
///
/// # Safety
/// Same as for the exported functions.
unsafe fn batch_of_boxes(
    count: usize,
    boxes: *const CUDA_MEMCPY3D_BATCH_OP,
    flags: c_ulonglong,
    stream: CUstream,
    default: DefaultStream,
) -> Result<(), (usize, Code)> {
    if count == 0 || flags != 0 || !takes_batches(stream) {
        return Err((NO_COPY, CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: as the caller of the exported function vouches.
    let boxes = unsafe { inputs(boxes, count) }.map_err(|code| (NO_COPY, code))?;
    let run = |each: &CUDA_MEMCPY3D_BATCH_OP| box_anywhere(stream, default, &each.as_box()?);
    boxes.iter().enumerate().try_for_each(|(copy, each)| run(each).map_err(|code| (copy, code)))
}

/// Copies a batch. An error contains the index of the copy that failed; the copies before it have been started.
///
/// # Safety
/// Same as for the exported functions.
unsafe fn batch(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    stream: CUstream,
    default: DefaultStream,
) -> Result<(), (usize, Code)> {
    if count == 0 || !takes_batches(stream) {
        return Err((NO_COPY, CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: as the caller of the exported function vouches.
    let lists = unsafe { inputs(to, count).and_then(|to| Ok((to, inputs(from, count)?, inputs(sizes, count)?))) };
    let (to, from, sizes) = lists.map_err(|code| (NO_COPY, code))?;
    for (copy, ((to, from), size)) in to.iter().zip(from.iter()).zip(sizes.iter()).enumerate() {
        anywhere(stream, default, *to, *from, *size).map_err(|code| (copy, code))?;
    }
    Ok(())
}
