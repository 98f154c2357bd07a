//! Words of device memory that streams wait for and write. The worker's driver does both in the order of its streams.

use crate::boundary::{DefaultStream, inputs, refused};
use crate::copy::{self, Shape, Side};
use crate::graph::GRAPHS;
use crate::memory::host;
use crate::{Code, stream, stream_exports};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::memory_operations::{Kind, MOST_OPERATIONS, Operation, Width};
use driverapi::types::{CUdeviceptr, CUstream, CUstreamBatchMemOpParams};
use protocol::{Writer, function};
use std::ffi::c_uint;

stream_exports! {
    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(
        stream: CUstream,
        address: CUdeviceptr,
        value: u32,
        flags: c_uint,
    ) |default| {
        post(stream, default, &[Operation::new(Kind::Wait, Width::Four, address, value.into(), flags)?])
    }

    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(
        stream: CUstream,
        address: CUdeviceptr,
        value: u64,
        flags: c_uint,
    ) |default| {
        post(stream, default, &[Operation::new(Kind::Wait, Width::Eight, address, value, flags)?])
    }

    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(
        stream: CUstream,
        address: CUdeviceptr,
        value: u32,
        flags: c_uint,
    ) |default| {
        post(stream, default, &[Operation::new(Kind::Write, Width::Four, address, value.into(), flags)?])
    }

    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(
        stream: CUstream,
        address: CUdeviceptr,
        value: u64,
        flags: c_uint,
    ) |default| {
        post(stream, default, &[Operation::new(Kind::Write, Width::Eight, address, value, flags)?])
    }

    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(
        stream: CUstream,
        count: c_uint,
        parameters: *mut CUstreamBatchMemOpParams,
        flags: c_uint,
    ) |default| {
        if flags != 0 || count as usize > MOST_OPERATIONS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let given = inputs(parameters, count as usize)?;
        let operations: Result<Vec<_>, Code> = given.iter().map(Operation::of_batch).collect();
        post(stream, default, &operations?.into_iter().flatten().collect::<Vec<_>>())
    }
}

/// All of them, or none if one of them is wrong.
fn post(stream: CUstream, default: DefaultStream, operations: &[Operation]) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    if GRAPHS.is_capturing(target.stream_id) {
        return refused("a stream memory operation in a capture");
    }
    for operation in operations {
        match host::find(operation.address as usize).map(|range| range.kind) {
            None => {}
            Some(kind) if kind.is_managed() => return Err(CUDA_ERROR_INVALID_VALUE),
            // A mirror is brought up to date when work is given, and not while a stream waits.
            Some(_) => return refused("a stream memory operation on page-locked memory"),
        }
        let width = operation.width.bytes();
        copy::check_written(&target.live, Side::linear(operation.address, width), Shape::linear(width))?;
    }
    for operation in operations {
        let body = |w: &mut Writer| {
            w.put(&operation.address);
            match operation.width {
                Width::Four => w.put(&(operation.value as u32)),
                Width::Eight => w.put(&operation.value),
            };
            w.put(&operation.flags);
        };
        target.live.session.post_work(number(operation), target.stream_id, body)?;
    }
    Ok(())
}

fn number(operation: &Operation) -> u32 {
    match (operation.kind, operation.width) {
        (Kind::Wait, Width::Four) => function::CU_STREAM_WAIT_VALUE32_V2,
        (Kind::Wait, Width::Eight) => function::CU_STREAM_WAIT_VALUE64_V2,
        (Kind::Write, Width::Four) => function::CU_STREAM_WRITE_VALUE32_V2,
        (Kind::Write, Width::Eight) => function::CU_STREAM_WRITE_VALUE64_V2,
    }
}
