//! The entry points for words that streams wait for and write. For words in device memory, the worker's driver does
//! both in stream order. For words in page-locked memory, the client writes them, or waits on a thread, when the stream
//! reaches the operation.

use crate::boundary::{DefaultStream, inputs, refused};
use crate::copies::copy::{self, Shape, Side};
use crate::graphs::graph::GRAPHS;
use crate::memory::{host, mapped};
use crate::objects::stream;
use crate::objects::stream::Target;
use crate::program::sys;
use crate::session::{load, store};
use crate::{Code, stream_exports};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::memory_operations::{Kind, MOST_OPERATIONS, Operation, Width};
use driverapi::types::{CUdeviceptr, CUstream, CUstreamBatchMemOpParams};
use protocol::{Writer, function};
use std::ffi::c_uint;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

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

/// Sends all operations, or none if one of them is invalid.
fn post(stream: CUstream, default: DefaultStream, operations: &[Operation]) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    if GRAPHS.is_capturing(target.stream_id) {
        return refused("a stream memory operation in a capture");
    }
    let at_host = |operation: &Operation| {
        let address = mapped::host_address(&target.live.session, operation.address).unwrap_or(operation.address);
        Operation { address, ..*operation }
    };
    let operations: Vec<Operation> = operations.iter().map(at_host).collect();
    operations.iter().try_for_each(|operation| check(&target, operation))?;
    for operation in &operations {
        if host::find(operation.address as usize).is_some() {
            match operation.kind {
                Kind::Write => write_host(&target, *operation)?,
                Kind::Wait => wait_for_host(&target, *operation)?,
            }
            continue;
        }
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

fn check(target: &Target, operation: &Operation) -> Result<(), Code> {
    let (address, width) = (operation.address, operation.width.bytes());
    let Some(range) = host::find(address as usize) else {
        return copy::check_written(&target.live, Side::linear(address, width), Shape::linear(width));
    };
    let fits = (range.start + range.size) as u64 - address >= width;
    if range.kind.is_managed() || !fits { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Writes a host word in stream order. A reader that sees the word also sees the stream's earlier writes.
fn write_host(target: &Target, operation: Operation) -> Result<(), Code> {
    let session = Arc::clone(&target.live.session);
    let write = move |code| {
        if code == 0 && mapped::after_wait(&session).is_ok() {
            store(operation.address as usize, operation.width, operation.value);
        }
    };
    target.live.session.post_callback(target.stream_id, Box::new(write))
}

/// The first and the maximum pause of a thread that polls a word.
const PAUSES: [Duration; 2] = [Duration::from_micros(5), Duration::from_millis(1)];

/// Makes the stream wait for a word of host memory. Later work in the stream sees what the program wrote before the
/// word.
fn wait_for_host(target: &Target, operation: Operation) -> Result<(), Code> {
    let session = Arc::clone(&target.live.session);
    let wait = move |_| {
        let mut pause = PAUSES[0];
        sys::precise_sleeps();
        while !operation.is_met_by(load(operation.address as usize, operation.width)) && session.check().is_ok() {
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSES[1]);
        }
        // If the session has failed, the next call reports it.
        let _ = mapped::bring(&session);
    };
    target.live.session.post_wait(target.stream_id, Box::new(wait))
}

fn number(operation: &Operation) -> u32 {
    match (operation.kind, operation.width) {
        (Kind::Wait, Width::Four) => function::CU_STREAM_WAIT_VALUE32_V2,
        (Kind::Wait, Width::Eight) => function::CU_STREAM_WAIT_VALUE64_V2,
        (Kind::Write, Width::Four) => function::CU_STREAM_WRITE_VALUE32_V2,
        (Kind::Write, Width::Eight) => function::CU_STREAM_WRITE_VALUE64_V2,
    }
}
