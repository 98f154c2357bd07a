//! The entry points for streams and for the host functions in them.

use crate::Code;
use crate::boundary::{DefaultStream, LEGACY};
use crate::boundary::{write, write_optional};
use crate::devices::context;
use crate::graphs::graph::{self, GRAPHS, Work};
use crate::memory::mapped;
use crate::objects::host_function::HostCall;
use crate::objects::{event, stream};
use crate::session::Known;
use crate::{exports, stream_exports};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::{CUcontext, CUdevice, CUevent, CUgreenCtx, CUhostFn, CUstream, CUstreamCallback};
use protocol::StreamQuery;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

exports! {
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) { create(stream, flags, context::LEAST_PRIORITY) }

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy(stream: CUstream) { destroy(stream) }

    fn cuStreamDestroy_v2(stream: CUstream) { destroy(stream) }

    fn cuStreamGetGreenCtx(stream: CUstream, context: *mut CUgreenCtx) {
        stream::find(stream, LEGACY)?;
        write(context, null_mut())
    }
}

stream_exports! {
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(stream: CUstream) |default| {
        let target = stream::find(stream, default)?;
        graph::check_stream(&target)?;
        target.live.wait_for_stream(target.stream_id, || mapped::send(&target.live.session))?;
        mapped::after_wait(&target.live.session)
    }

    fn cuStreamQuery | cuStreamQuery_ptsz(stream: CUstream) |default| {
        let target = stream::find(stream, default)?;
        let session = &target.live.session;
        mapped::send(session)?;
        graph::check_stream(&target)?;
        if !target.live.is_stream_complete(target.stream_id, Known::Complete) {
            let before = session.newest_in_streams();
            session.call(target.stream_id, &StreamQuery {})?.success()?;
            session.note_complete(target.stream_id, Known::Complete, before);
        }
        mapped::after_wait(session)
    }

    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(stream: CUstream, priority: *mut c_int) |default| {
        write(priority, stream::find(stream, default)?.priority)
    }

    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(stream: CUstream, flags: *mut c_uint) |default| {
        write(flags, stream::find(stream, default)?.flags)
    }

    fn cuStreamGetId | cuStreamGetId_ptsz(stream: CUstream, id: *mut u64) |default| {
        write(id, stream::find(stream, default)?.stream_id)
    }

    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(stream: CUstream, device: *mut CUdevice) |default| {
        write(device, stream::find(stream, default)?.live.device.ordinal)
    }

    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(stream: CUstream, context: *mut CUcontext) |default| {
        write(context, without_provenance_mut(stream::find(stream, default)?.live.handle))
    }

    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(
        stream: CUstream,
        context: *mut CUcontext,
        green: *mut CUgreenCtx,
    ) |default| {
        let target = stream::find(stream, default)?;
        write_optional(context, without_provenance_mut(target.live.handle));
        write_optional(green, null_mut());
        Ok(())
    }

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(stream: CUstream, event: CUevent, flags: c_uint) |default| {
        let target = stream::resolve(stream, default)?;
        let event = event::get(event)?;
        if flags == CU_EVENT_WAIT_EXTERNAL && graph::capture(&target, || Ok(Work::Wait(Arc::clone(&event))))? {
            return Ok(());
        }
        // Outside of a capture, a stream cannot have an external wait.
        if flags != CU_EVENT_WAIT_DEFAULT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        match GRAPHS.ask(|captures| captures.wait(graph::for_capture(&target), event.id))? {
            true => Ok(()),
            false => event.hold_up(&target, flags),
        }
    }

    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(
        stream: CUstream,
        callback: CUstreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) |default| {
        let target = stream::resolve(stream, default)?;
        let callback = callback.filter(|_| flags == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // CUDA captures host functions, but not callbacks.
        graph::check_stream(&target)?;
        let (stream, data) = (stream.expose_provenance(), data.expose_provenance());
        let session = Arc::clone(&target.live.session);
        target.live.session.post_callback(target.stream_id, Box::new(move |status| {
            let _ = mapped::after_wait(&session);
            let pointer = std::ptr::with_exposed_provenance_mut::<c_void>;
            // SAFETY: the program gave this function, to be called once with these arguments.
            unsafe { callback(pointer(stream), status, pointer(data)) }
        }))
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(stream: CUstream, function: CUhostFn, data: *mut c_void) |default| {
        launch_host_function(stream, default, function, data)
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(
        stream: CUstream,
        function: CUhostFn,
        data: *mut c_void,
        mode: c_uint,
    ) |default| {
        if mode > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        launch_host_function(stream, default, function, data)
    }
}

unsafe fn create(to: *mut CUstream, flags: c_uint, priority: c_int) -> Result<(), Code> {
    context::current()?;
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let stream = stream::create(flags, priority)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, without_provenance_mut(stream.handle)) }
}

fn destroy(stream: CUstream) -> Result<(), Code> {
    let id = stream::destroy(stream)?;
    GRAPHS.with(|captures| captures.forget_stream(id));
    Ok(())
}

fn launch_host_function(
    stream: CUstream,
    default: DefaultStream,
    function: CUhostFn,
    data: *mut c_void,
) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let call = HostCall { function, data: data.expose_provenance() };
    match graph::capture(&target, || Ok(Work::Host(call)))? {
        true => Ok(()),
        false => call.post(&target),
    }
}
