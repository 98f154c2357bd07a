//! The entry points for streams, events and callbacks.

use super::default_stream::DefaultStream;
use super::entry::{entry_points, stream_entry_points};
use super::handles::{handle, id};
use crate::driver::{How, current, driver};
use crate::ffi::{Out, R};
use crate::process::handles;
use crate::streams::callback::in_callback;
use crate::streams::shared_event::SharedEvent;
use crate::streams::stream::{Event, Order, Progress, Stream};
use crate::work::{HostCall, Work};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

pub const GREATEST_PRIORITY: c_int = -5;

fn create(out: Out<CUstream>, flags: c_uint, priority: c_int) -> R {
    let context = current()?;
    let out = out.required()?;
    let order = match flags {
        CU_STREAM_DEFAULT => Order::Blocking,
        CU_STREAM_NON_BLOCKING => Order::NonBlocking,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let number = handles::mint();
    let stream = Stream::new(number, context, flags, priority.clamp(GREATEST_PRIORITY, 0), order);
    driver()?.streams.insert(number, Arc::new(stream));
    out.set(handle(number))
}

pub fn event(handle: CUevent) -> R<Arc<Event>> {
    driver()?.events.get(id(handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn record(default: DefaultStream, which: CUevent, stream: CUstream, flags: c_uint) -> R {
    let stream = default.resolve(stream)?;
    let event = event(which)?;
    if event.context != stream.context.id {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    // The external flag has an effect in a capture only.
    if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    if flags & CU_EVENT_RECORD_EXTERNAL != 0 && driver.capture(&stream, || Work::Record(Arc::clone(&event)))? {
        return Ok(());
    }
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let captured = driver.graphs.ask(|captures| captures.record(event.id as u64, stream.for_capture()))?;
    if captured { Ok(()) } else { event.record(&stream, driver.start) }
}

fn elapsed(milliseconds: Out<f32>, from: CUevent, to: CUevent) -> R {
    let (from, to) = (event(from)?, event(to)?);
    current()?;
    let device = |event: &Event| {
        driver()?.contexts.get(event.context).map(|context| context.device.ordinal).ok_or(CUDA_ERROR_INVALID_HANDLE)
    };
    if !from.timed || !to.timed || device(&from)? != device(&to)? {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    match (from.progress(), to.progress()) {
        (Progress::NeverRecorded, _) | (_, Progress::NeverRecorded) => Err(CUDA_ERROR_INVALID_HANDLE),
        (Progress::Reached(start), Progress::Reached(end)) => {
            milliseconds.set((end as f64 - start as f64) as f32 / 1e6)
        }
        _ => Err(CUDA_ERROR_NOT_READY),
    }
}

fn call_host(default: DefaultStream, stream: CUstream, function: CUhostFn, data: *mut c_void) -> R {
    let stream = default.resolve(stream)?;
    let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let call = HostCall { function: Some(function), data: data.expose_provenance() };
    driver()?.perform(Work::Host(call), How::Queued, &stream).map(drop)
}

entry_points! {
    fn cuStreamCreate(out: Out<CUstream>, flags: c_uint) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<CUstream>, flags: c_uint, priority: c_int) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy | cuStreamDestroy_v2(stream: CUstream) {
        let stream = driver()?.streams.remove(id(stream)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        super::stream_attributes::forget(&stream);
        driver()?.graphs.with(|captures| captures.forget_stream(stream.for_capture().id));
        stream.retire();
        stream.context.check()
    }

    fn cuStreamGetGreenCtx(stream: CUstream, out: Out<CUgreenCtx>) {
        DefaultStream::Legacy.resolve(stream)?;
        out.set(handle(0))
    }

    fn cuEventCreate(out: Out<CUevent>, flags: c_uint) {
        let context = current()?;
        let out = out.required()?;
        let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        if flags & !known != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (timed, between_processes) = (flags & CU_EVENT_DISABLE_TIMING == 0, flags & CU_EVENT_INTERPROCESS != 0);
        if timed && between_processes {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let shared = if between_processes { Some(Arc::new(SharedEvent::create()?)) } else { None };
        let number = handles::mint();
        let event = Event::new(number, context.id, timed, shared);
        driver()?.events.insert(number, Arc::new(event));
        out.set(handle(number))
    }

    fn cuEventDestroy | cuEventDestroy_v2(which: CUevent) {
        let event = driver()?.events.remove(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        driver()?.graphs.with(|captures| captures.forget_event(event.id as u64));
        Ok(())
    }

    /// Queries the event in the event's own context. The calling thread needs no context.
    fn cuEventQuery(which: CUevent) {
        let event = event(which)?;
        driver()?.graphs.ask(|captures| captures.check_event(event.id as u64))?;
        driver()?.graphs.check_call()?;
        let progress = event.progress();
        driver()?.contexts.get(event.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.check()?;
        match progress {
            Progress::Pending => Err(CUDA_ERROR_NOT_READY),
            Progress::NeverRecorded | Progress::Reached(_) => Ok(()),
        }
    }

    fn cuEventSynchronize(which: CUevent) {
        let event = event(which)?;
        driver()?.graphs.ask(|captures| captures.check_event(event.id as u64))?;
        driver()?.graphs.check_call()?;
        event.synchronise()?;
        // The check also applies to an event without a record, for example after its record failed.
        driver()?.contexts.get(event.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.check()
    }

    fn cuEventElapsedTime | cuEventElapsedTime_v2(milliseconds: Out<f32>, from: CUevent, to: CUevent) {
        elapsed(milliseconds, from, to)
    }
}

stream_entry_points! { default;
    fn cuStreamQuery / cuStreamQuery_ptsz(stream: CUstream) {
        let stream = default.resolve(stream)?;
        driver()?.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        if !stream.end().is_reached() {
            return Err(CUDA_ERROR_NOT_READY);
        }
        stream.host_waited();
        stream.context.check()
    }

    fn cuStreamSynchronize / cuStreamSynchronize_ptsz(stream: CUstream) {
        let stream = default.resolve_even_if_faulted(stream)?;
        driver()?.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        stream.synchronise()
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz(stream: CUstream, priority: Out<c_int>) {
        priority.set(default.resolve(stream)?.priority)
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz(stream: CUstream, flags: Out<c_uint>) {
        flags.set(default.resolve(stream)?.flags)
    }

    fn cuStreamGetId / cuStreamGetId_ptsz(stream: CUstream, number: Out<u64>) {
        number.set(default.resolve(stream)?.number())
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz(stream: CUstream, context: Out<CUcontext>) {
        context.set(handle(default.resolve(stream)?.context.id))
    }

    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz(stream: CUstream, context: Out<CUcontext>, green: Out<CUgreenCtx>) {
        let stream = default.resolve(stream)?;
        green.set_if_wanted(handle(0));
        context.set(handle(stream.context.id))
    }

    fn cuStreamGetDevice / cuStreamGetDevice_ptsz(stream: CUstream, device: Out<CUdevice>) {
        device.set(default.resolve(stream)?.context.device.ordinal as CUdevice)
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz(stream: CUstream, which: CUevent, flags: c_uint) {
        let stream = default.resolve(stream)?;
        let event = event(which)?;
        if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let driver = driver()?;
        if flags & CU_EVENT_WAIT_EXTERNAL != 0 && driver.capture(&stream, || Work::Wait(Arc::clone(&event)))? {
            return Ok(());
        }
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let captured = driver.graphs.ask(|captures| captures.wait(stream.for_capture(), event.id as u64))?;
        if captured { Ok(()) } else { event.hold(&stream) }
    }

    fn cuEventRecord / cuEventRecord_ptsz(which: CUevent, stream: CUstream) {
        record(default, which, stream, 0)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(which: CUevent, stream: CUstream, flags: c_uint) {
        record(default, which, stream, flags)
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz(stream: CUstream, function: CUhostFn, data: *mut c_void) {
        call_host(default, stream, function, data)
    }

    /// The last argument selects how the wait is done. It is ignored, because a stream's thread always sleeps.
    fn cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz(
        stream: CUstream, function: CUhostFn, data: *mut c_void, _sync_mode: c_uint,
    ) {
        call_host(default, stream, function, data)
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz(
        stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    ) {
        let given = id(stream);
        let stream = default.resolve(stream)?;
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // CUDA captures host functions but not callbacks.
        driver()?.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        super::handles::no_flags(flags.into())?;
        let data = data.expose_provenance();
        let context = Arc::clone(&stream.context);
        // Unlike host functions, callbacks also run after a fault, and receive the fault's code.
        let work = move || {
            let data = std::ptr::with_exposed_provenance_mut(data);
            // SAFETY: the program passed this callback to be called with this argument.
            in_callback(|| unsafe { callback(handle(given), context.fault(), data) });
        };
        stream.submit(Vec::new(), work).map(drop)
    }
}
