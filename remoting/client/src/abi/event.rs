//! The entry points for events, such as `cuEventRecord`.

use crate::Code;
use crate::boundary::DefaultStream;
use crate::boundary::write;
use crate::devices::context;
use crate::graphs::graph::{self, GRAPHS, Work};
use crate::memory::mapped;
use crate::objects::event::Event;
use crate::objects::{event, stream};
use crate::{exports, stream_exports};
use driverapi::constants::{CU_EVENT_RECORD_DEFAULT, CU_EVENT_RECORD_EXTERNAL};
use driverapi::errors::*;
use driverapi::types::{CUevent, CUstream};
use protocol::{Writer, function};
use std::ffi::c_uint;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

exports! {
    fn cuEventCreate(event: *mut CUevent, flags: c_uint) {
        context::current()?;
        if event.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(event, without_provenance_mut(event::create(flags)?.handle))
    }

    fn cuEventDestroy(event: CUevent) { destroy(event) }

    fn cuEventDestroy_v2(event: CUevent) { destroy(event) }

    fn cuEventQuery(event: CUevent) {
        let event = event::get(event)?;
        check(&event)?;
        event.query()?;
        mapped::after_wait(&event.live.session)
    }

    fn cuEventSynchronize(event: CUevent) {
        let event = event::get(event)?;
        check(&event)?;
        event.synchronise()?;
        mapped::after_wait(&event.live.session)
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        write(milliseconds, elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        write(milliseconds, elapsed(start, end)?)
    }
}

fn destroy(event: CUevent) -> Result<(), Code> {
    let id = event::destroy(event)?;
    GRAPHS.with(|captures| captures.forget_event(id));
    Ok(())
}

stream_exports! {
    fn cuEventRecord | cuEventRecord_ptsz(event: CUevent, stream: CUstream) |default| {
        record(event, stream, default, CU_EVENT_RECORD_DEFAULT)
    }

    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(
        event: CUevent,
        stream: CUstream,
        flags: c_uint,
    ) |default| {
        record(event, stream, default, flags)
    }
}

/// Checks that the program may wait for the event or query it. Fails if a capture has recorded the event, or if a
/// capture forbids such calls.
fn check(event: &Event) -> Result<(), Code> {
    GRAPHS.ask(|captures| captures.check_event(event.id))?;
    GRAPHS.check_call()
}

fn record(event: CUevent, stream: CUstream, default: DefaultStream, flags: c_uint) -> Result<(), Code> {
    let event = event::get(event)?;
    let target = stream::resolve(stream, default)?;
    if flags == CU_EVENT_RECORD_EXTERNAL && graph::capture(&target, || Ok(Work::Record(Arc::clone(&event))))? {
        return Ok(());
    }
    // Outside of a capture, an event cannot have an external record.
    if flags != CU_EVENT_RECORD_DEFAULT {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match GRAPHS.ask(|captures| captures.record(event.id, graph::for_capture(&target)))? {
        true => Ok(()),
        false => event.record(&target, flags),
    }
}

fn elapsed(start: CUevent, end: CUevent) -> Result<f32, Code> {
    let (start, end) = (event::get(start)?, event::get(end)?);
    // Each device has its own clock, so times of two devices cannot be compared.
    let one_device = start.live.device.ordinal == end.live.device.ordinal;
    let comparable = one_device && start.is_timed() && end.is_timed();
    if !comparable || !start.is_recorded() || !end.is_recorded() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    // The worker may delay a record, and its driver does not know a delayed record.
    start.query()?;
    end.query()?;
    let mut payload = Writer::new();
    payload.put(&start.id).put(&end.id);
    start.live.session.call_raw(function::CU_EVENT_ELAPSED_TIME, 0, &payload.bytes)?.success()?.decode()
}
