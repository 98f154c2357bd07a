//! The entry points for stream memory operations: a stream waits for a value in memory, or writes one.

use super::default_stream::DefaultStream;
use super::entry::stream_entry_points;
use crate::check;
use crate::driver::driver;
use crate::ffi::{In, R};
use crate::memory::allocations::Kind as Memory;
use crate::memory::arena;
use crate::streams::context::Context;
use driverapi::errors::*;
use driverapi::memory_operations::{Kind, MOST_OPERATIONS, Operation, Width};
use driverapi::types::*;
use std::ffi::c_uint;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which a waiting stream reads its word.
const INTERVAL: Duration = Duration::from_micros(50);

/// Queues all operations in the stream. If one of them is invalid, none is queued.
fn run(default: DefaultStream, stream: CUstream, operations: Vec<Operation>) -> R {
    let stream = default.resolve(stream)?;
    let driver = driver()?;
    if driver.graphs.is_capturing(stream.for_capture().id) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    // CUDA documents that streams cannot wait on managed memory.
    let valid = |operation: &Operation| {
        let managed = driver.memory.find(operation.address).is_some_and(|a| a.kind == Memory::Managed);
        !managed && driver.memory.is_valid(operation.address, operation.width.bytes())
    };
    if !operations.iter().all(valid) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // On a null GPU no kernel runs that could write the word.
    let waits = !driver.model().null;
    let context = Arc::clone(&stream.context);
    let work = move || {
        for operation in &operations {
            match operation.kind {
                Kind::Wait if waits => {
                    wait(operation, &context);
                    if let Some(checked) = check::current() {
                        checked.acquire_word(operation.address);
                    }
                }
                Kind::Wait => (),
                Kind::Write => {
                    if let Some(checked) = check::current() {
                        checked.release_word(operation.address, operation.width.bytes());
                    }
                    arena::store(operation.address, operation.width, operation.value);
                }
            }
        }
        Ok(())
    };
    stream.enqueue(work).map(drop)
}

fn wait(operation: &Operation, context: &Context) {
    while !operation.is_met_by(arena::load(operation.address, operation.width)) && !context.is_stopped() {
        std::thread::sleep(INTERVAL);
    }
}

fn one(kind: Kind, width: Width, address: CUdeviceptr, value: u64, flags: c_uint) -> R<Vec<Operation>> {
    Ok(vec![Operation::new(kind, width, address, value, flags)?])
}

stream_entry_points! { default;
    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        run(default, stream, one(Kind::Wait, Width::Four, address, value.into(), flags)?)
    }

    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz(
        stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        run(default, stream, one(Kind::Wait, Width::Eight, address, value, flags)?)
    }

    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint,
    ) {
        run(default, stream, one(Kind::Write, Width::Four, address, value.into(), flags)?)
    }

    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz(
        stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint,
    ) {
        run(default, stream, one(Kind::Write, Width::Eight, address, value, flags)?)
    }

    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz(
        stream: CUstream, count: c_uint, parameters: In<CUstreamBatchMemOpParams>, flags: c_uint,
    ) {
        super::handles::no_flags(flags.into())?;
        if count as usize > MOST_OPERATIONS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let given = parameters.list(count as usize)?;
        let operations: R<Vec<_>> = given.iter().map(Operation::of_batch).collect();
        run(default, stream, operations?.into_iter().flatten().collect())
    }
}
