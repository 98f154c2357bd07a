//! The entry points for fills. The type of the value determines the size of an element.

use crate::boundary::DefaultStream;
use crate::copies::copy::Timing::{self, Asynchronous, Synchronous};
use crate::copies::fill;
use crate::graphs::graph::{self, Work};
use crate::objects::stream;
use crate::{Code, stream_exports};
use driverapi::types::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUstream};
use std::ptr::null_mut;

stream_exports! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(to: CUdeviceptr, value: u8, count: usize) |default| {
        fill(null_mut(), default, row(to, value.into(), 1, count), Synchronous)
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(
        to: CUdeviceptr,
        value: u8,
        count: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, row(to, value.into(), 1, count), Asynchronous)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(to: CUdeviceptr, value: u16, count: usize) |default| {
        fill(null_mut(), default, row(to, value.into(), 2, count), Synchronous)
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(
        to: CUdeviceptr,
        value: u16,
        count: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, row(to, value.into(), 2, count), Asynchronous)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(to: CUdeviceptr, value: u32, count: usize) |default| {
        fill(null_mut(), default, row(to, value, 4, count), Synchronous)
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(
        to: CUdeviceptr,
        value: u32,
        count: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, row(to, value, 4, count), Asynchronous)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        to: CUdeviceptr,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
    ) |default| {
        fill(null_mut(), default, rows((to, pitch), value.into(), 1, (width, height)), Synchronous)
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        to: CUdeviceptr,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, rows((to, pitch), value.into(), 1, (width, height)), Asynchronous)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        to: CUdeviceptr,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
    ) |default| {
        fill(null_mut(), default, rows((to, pitch), value.into(), 2, (width, height)), Synchronous)
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        to: CUdeviceptr,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, rows((to, pitch), value.into(), 2, (width, height)), Asynchronous)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        to: CUdeviceptr,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
    ) |default| {
        fill(null_mut(), default, rows((to, pitch), value, 4, (width, height)), Synchronous)
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        to: CUdeviceptr,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
        stream: CUstream,
    ) |default| {
        fill(stream, default, rows((to, pitch), value, 4, (width, height)), Asynchronous)
    }
}

#[allow(non_snake_case)]
fn rows(
    (dst, pitch): (CUdeviceptr, usize),
    value: u32,
    elementSize: u32,
    (width, height): (usize, usize),
) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height }
}

fn row(to: CUdeviceptr, value: u32, size: u32, count: usize) -> CUDA_MEMSET_NODE_PARAMS {
    rows((to, 0), value, size, (count, 1))
}

fn fill(stream: CUstream, default: DefaultStream, params: CUDA_MEMSET_NODE_PARAMS, timing: Timing) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    fill::find(&target.live, &params)?;
    if timing == Synchronous {
        graph::check_waiting_call(&target)?;
    } else if graph::capture(&target, || Ok(Work::Fill(params)))? {
        return Ok(());
    }
    fill::run(&target, &params, timing)
}
