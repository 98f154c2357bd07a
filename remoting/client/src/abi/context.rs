//! The entry points for contexts, such as `cuCtxCreate`.

use crate::Code;
use crate::boundary::{write, write_optional};
use crate::devices::context::Live;
use crate::devices::context::{self, Context};
use crate::devices::context::{GREATEST_PRIORITY, LEAST_PRIORITY};
use crate::devices::{self, Access};
use crate::exports;
use crate::graphs::graph::GRAPHS;
use crate::memory::{mapped, taken};
use driverapi::constants::{CU_CTX_FLAGS_MASK, CU_CTX_SCHED_MASK};
use driverapi::errors::*;
use driverapi::types::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam};
use std::ffi::{c_int, c_uint};
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The version that `cuCtxGetApiVersion` reports.
const API_VERSION: c_uint = 3020;

exports! {
    fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) { create(context, flags, device) }

    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) { create(context, flags, device) }

    fn cuCtxCreate_v3(
        context: *mut CUcontext,
        affinities: *mut CUexecAffinityParam,
        count: c_int,
        flags: c_uint,
        device: CUdevice,
    ) {
        if count != 0 {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create(context, flags, device)
    }

    fn cuCtxCreate_v4(context: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) {
        if let Some(parameters) = parameters.as_ref() {
            if parameters.numExecAffinityParams != 0 {
                return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
            if !parameters.cigParams.is_null() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        create(context, flags, device)
    }

    fn cuCtxDestroy(context: CUcontext) { context::destroy(context) }

    fn cuCtxDestroy_v2(context: CUcontext) { context::destroy(context) }

    fn cuCtxPushCurrent(context: CUcontext) { context::push_current(context) }

    fn cuCtxPushCurrent_v2(context: CUcontext) { context::push_current(context) }

    fn cuCtxPopCurrent(context: *mut CUcontext) { pop(context) }

    fn cuCtxPopCurrent_v2(context: *mut CUcontext) { pop(context) }

    fn cuCtxSetCurrent(context: CUcontext) { context::set_current(context) }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        crate::program::process::check_initialised()?;
        write(context, without_provenance_mut(context::current_handle()))
    }

    fn cuCtxGetDevice(device: *mut CUdevice) { write(device, context::current_context()?.ordinal) }

    fn cuCtxGetDevice_v2(device: *mut CUdevice, context: CUcontext) {
        write(device, given_or_current(context)?.ordinal)
    }

    fn cuCtxGetFlags(flags: *mut c_uint) { write(flags, context::current_context()?.flags.load(SeqCst)) }

    fn cuCtxSetFlags(flags: c_uint) {
        let context = context::current_context()?;
        check_flags(flags)?;
        context.flags.store(flags, SeqCst);
        Ok(())
    }

    fn cuCtxGetId(context: CUcontext, id: *mut u64) { write(id, id_of(context)?) }

    fn cuCtxSynchronize() {
        let live = context::current()?;
        check_no_capture(&live)?;
        live.wait()?;
        mapped::after_wait(&live.session)
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        let live = given_or_current(context)?.live()?;
        context::usable(&live)?;
        check_no_capture(&live)?;
        live.wait()?;
        mapped::after_wait(&live.session)
    }

    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        taken::set_limit(&*context::current()?, limit, value as u64)
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint) {
        given_or_current(context)?;
        write(version, API_VERSION)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        context::current_context()?;
        write_optional(least, LEAST_PRIORITY);
        write_optional(greatest, GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) {
        context::current_context()?;
        if flags != 0 || context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(context, without_provenance_mut(context::attach()?))
    }

    fn cuCtxDetach(context: CUcontext) { context::detach(context) }

    fn cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint) {
        let (live, peer) = (context::current()?, context::get(context)?.live()?);
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if live.id == peer.id {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let mut peers = live.peers.lock();
        if peers.contains_key(&peer.id) {
            return Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.insert(peer.id, Access::new(live.device, peer.device)?);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(context: CUcontext) {
        let (live, peer) = (context::current()?, context::get(context)?.live()?);
        let access = live.peers.lock().remove(&peer.id).ok_or(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)?;
        live.synchronise()?;
        access.end()
    }

    /// Returns success without effect, because no profiler is ever attached.
    fn cuProfilerStart() { context::current().map(drop) }

    fn cuProfilerStop() { context::current().map(drop) }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) {
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(context, without_provenance_mut(context::retain_primary(device)?.handle))
    }

    fn cuDevicePrimaryCtxRelease(device: CUdevice) { context::release_primary(device) }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) { context::release_primary(device) }

    fn cuDevicePrimaryCtxReset(device: CUdevice) { context::reset_primary(device) }

    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) { context::reset_primary(device) }

    fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let context = &devices::get(device)?.primary;
        write(flags, context.flags.load(SeqCst))?;
        write(active, c_int::from(context.is_retained() && context.live().is_ok()))
    }
}

unsafe fn create(to: *mut CUcontext, flags: c_uint, device: CUdevice) -> Result<(), Code> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    devices::get(device)?;
    check_flags(flags)?;
    let handle = without_provenance_mut(context::create(device, flags)?.handle);
    context::push_current(handle)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, handle) }
}

unsafe fn pop(to: *mut CUcontext) -> Result<(), Code> {
    let handle = context::pop_current()?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write_optional(to, without_provenance_mut(handle)) };
    Ok(())
}

/// Returns the id of a context, or of the current context for a null handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` if there is none.
pub fn id_of(context: CUcontext) -> Result<u64, Code> {
    Ok(given_or_current(context)?.live()?.id)
}

fn given_or_current(handle: CUcontext) -> Result<Arc<Context>, Code> {
    if handle.is_null() { context::current_context() } else { context::get(handle) }
}

/// Checks that the flags select at most one way of waiting and contain no unknown flag.
fn check_flags(flags: c_uint) -> Result<(), Code> {
    let one_way = (flags & CU_CTX_SCHED_MASK).count_ones() <= 1;
    if one_way && flags & !CU_CTX_FLAGS_MASK == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn set_primary_flags(device: CUdevice, flags: c_uint) -> Result<(), Code> {
    let context = &devices::get(device)?.primary;
    check_flags(flags)?;
    context.flags.store(flags, SeqCst);
    Ok(())
}

/// Checks that no stream of the context is capturing. Such a context cannot be waited for.
fn check_no_capture(live: &Live) -> Result<(), Code> {
    GRAPHS.ask(|captures| captures.check_context(live.id))?;
    GRAPHS.check_call()
}
