//! The entry points for fills, `cuMemset*`.

use super::default_stream::DefaultStream;
use super::entry::stream_entry_points;
use crate::driver::Mode;
use crate::driver::driver;
use crate::ffi::R;
use crate::memory::arena::Pattern;
use crate::memory::copy::Fill;
use driverapi::types::*;
use std::ffi::{c_uchar, c_uint, c_ushort};
use std::ptr;

/// Fills `count` elements at `dst` with `pattern`, asynchronously in `stream`. If `stream` is `None`, fills them
/// synchronously in the default stream.
fn fill(default: DefaultStream, dst: CUdeviceptr, pattern: Pattern, count: usize, stream: Option<CUstream>) -> R {
    rows(default, dst, 0, pattern, (count, 1), stream)
}

fn rows(
    default: DefaultStream,
    dst: CUdeviceptr,
    pitch: usize,
    pattern: Pattern,
    (width, height): (usize, usize),
    stream: Option<CUstream>,
) -> R {
    let mode = if stream.is_some() { Mode::Async } else { Mode::Sync };
    let stream = default.resolve(stream.unwrap_or(ptr::null_mut()))?;
    let (width, height, pitch) = (width as u64, height as u64, pitch as u64);
    driver()?.set(Fill { address: dst, pitch, pattern, width, height, forgets: false, clears: false }, mode, &stream)
}

stream_entry_points! { default;
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds(dst: CUdeviceptr, value: c_uchar, count: usize) {
        fill(default, dst, Pattern::Byte(value), count, None)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds(dst: CUdeviceptr, value: c_ushort, count: usize) {
        fill(default, dst, Pattern::Half(value), count, None)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds(dst: CUdeviceptr, value: c_uint, count: usize) {
        fill(default, dst, Pattern::Word(value), count, None)
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize,
    ) {
        rows(default, dst, pitch, Pattern::Byte(value), (width, height), None)
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize,
    ) {
        rows(default, dst, pitch, Pattern::Half(value), (width, height), None)
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
    ) {
        rows(default, dst, pitch, Pattern::Word(value), (width, height), None)
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz(dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(default, dst, Pattern::Byte(value), count, Some(stream))
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz(dst: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(default, dst, Pattern::Half(value), count, Some(stream))
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz(dst: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(default, dst, Pattern::Word(value), count, Some(stream))
    }

    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream,
    ) {
        rows(default, dst, pitch, Pattern::Byte(value), (width, height), Some(stream))
    }

    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream,
    ) {
        rows(default, dst, pitch, Pattern::Half(value), (width, height), Some(stream))
    }

    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream,
    ) {
        rows(default, dst, pitch, Pattern::Word(value), (width, height), Some(stream))
    }
}
