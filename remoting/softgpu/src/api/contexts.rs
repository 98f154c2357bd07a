//! The entry points for contexts: the current context, and limits, flags and other settings of a context.

use super::entry::entry_points;
use super::handles::{handle, id};
use crate::driver::{self, Driver, current, driver};
use crate::ffi::{In, Out, R};
use crate::streams::context::Context;
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::limits;
use driverapi::types::*;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The version that `cuCtxGetApiVersion` has returned since CUDA 4.
const API_VERSION: c_uint = 3020;

pub fn check_flags(flags: c_uint) -> R {
    let several_policies = (flags & CU_CTX_SCHED_MASK).count_ones() > 1;
    if flags & !CU_CTX_FLAGS_MASK != 0 || several_policies { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

fn create(context: Out<CUcontext>, flags: c_uint, device: CUdevice) -> R {
    let driver = driver()?;
    let context = context.required()?;
    check_flags(flags)?;
    let made = driver.create_context(driver.device(device)?, flags)?;
    driver::push(made);
    context.set(handle(made))
}

/// Returns the live context of a handle, or the current context if the handle is null.
fn named(driver: &Driver, context: CUcontext) -> R<Arc<Context>> {
    if context.is_null() {
        return current();
    }
    let context = driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// Returns the context's number. No other context of the process has the same number.
pub fn id_of(context: CUcontext) -> R<u64> {
    Ok(named(driver()?, context)?.id as u64)
}

/// Destroys a context that the program created. Primary contexts are refused.
fn destroy(driver: &Driver, context: &Context) -> R {
    if context.primary {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    driver.end_context(context.id, false)?;
    if driver::current_id() == Some(context.id) {
        driver::pop();
    }
    Ok(())
}

fn default_limit(limit: CUlimit) -> R<u64> {
    match limit {
        CU_LIMIT_STACK_SIZE => Ok(limits::DEFAULT_STACK),
        CU_LIMIT_PRINTF_FIFO_SIZE => Ok(limits::DEFAULT_PRINTF_FIFO),
        CU_LIMIT_MALLOC_HEAP_SIZE => Ok(limits::DEFAULT_MALLOC_HEAP),
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY => Ok(64),
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE => Ok(0),
        // cuBLAS queries whether the context shares the device with graphics, and needs a result.
        CU_LIMIT_CIG_ENABLED | CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED | CU_LIMIT_SHMEM_SIZE => Ok(0),
        _ => Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
    }
}

fn synchronise(context: &Arc<Context>) -> R {
    let driver = driver()?;
    driver.graphs.ask(|captures| captures.check_context(context.id as u64))?;
    driver.graphs.check_call()?;
    context.synchronise()
}

entry_points! {
    fn cuCtxCreate | cuCtxCreate_v2(context: Out<CUcontext>, flags: c_uint, device: CUdevice) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(
        context: Out<CUcontext>, affinity: In<CUexecAffinityParam>, count: c_int, flags: c_uint, device: CUdevice,
    ) {
        if !affinity.is_null() || count != 0 {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create(context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<CUcontext>, params: In<CUctxCreateParams>, flags: c_uint, device: CUdevice) {
        if !params.is_null() {
            let params = params.get()?;
            if params.numExecAffinityParams != 0 {
                return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
            if !params.cigParams.is_null() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        create(context, flags, device)
    }

    fn cuCtxDestroy | cuCtxDestroy_v2(context: CUcontext) {
        let driver = driver()?;
        let context = driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        destroy(driver, &context)
    }

    fn cuCtxAttach(context: Out<CUcontext>, flags: c_uint) {
        let (current, context) = (current()?, context.required()?);
        super::handles::no_flags(flags.into())?;
        current.attached.fetch_add(1, Ordering::SeqCst);
        context.set(handle(current.id))
    }

    /// Destroys the current context when it was detached as often as it was created and attached. A primary context is
    /// not destroyed.
    fn cuCtxDetach(context: CUcontext) {
        let driver = driver()?;
        let context = driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if driver::current_id() != Some(context.id) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let last = !context.primary && context.attached.fetch_sub(1, Ordering::SeqCst) == 1;
        if last { destroy(driver, &context) } else { Ok(()) }
    }

    fn cuCtxPushCurrent | cuCtxPushCurrent_v2(context: CUcontext) {
        if !driver()?.is_context(id(context)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        driver::push(id(context));
        Ok(())
    }

    fn cuCtxPopCurrent | cuCtxPopCurrent_v2(context: Out<CUcontext>) {
        driver()?;
        let popped = driver::pop().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.set_if_wanted(handle(popped));
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let driver = driver()?;
        if !context.is_null() && !driver.is_context(id(context)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        driver::pop();
        if !context.is_null() {
            driver::push(id(context));
        }
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        driver()?;
        context.set(handle(driver::current_id().unwrap_or(0)))
    }

    fn cuCtxGetDevice(device: Out<CUdevice>) {
        device.set(driver::current_even_if_faulted()?.device.ordinal as CUdevice)
    }

    fn cuCtxGetDevice_v2(device: Out<CUdevice>, context: CUcontext) {
        device.set(named(driver()?, context)?.device.ordinal as CUdevice)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        flags.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let context = current()?;
        check_flags(flags)?;
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: CUcontext, number: Out<u64>) {
        number.set(id_of(context)?)
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: Out<c_uint>) {
        named(driver()?, context)?;
        version.set(API_VERSION)
    }

    fn cuCtxSynchronize() {
        synchronise(&driver::current_even_if_faulted()?)
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        let driver = driver()?;
        if context.is_null() {
            return synchronise(&driver::current_even_if_faulted()?);
        }
        synchronise(&driver.contexts.get(id(context)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?)
    }

    fn cuCtxSetLimit(limit: CUlimit, value: usize) {
        let context = current()?;
        default_limit(limit)?;
        // CUDA documents that this limit cannot change after a kernel used the heap.
        if limit == CU_LIMIT_MALLOC_HEAP_SIZE && context.uses_heap.load(Ordering::Relaxed) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        context.set_limit(limit, value as u64)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: CUlimit) {
        let context = current()?;
        let default = default_limit(limit)?;
        value.set(context.limit(limit).unwrap_or(default) as usize)
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(drop)
    }

    fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) {
        config.set(current()?.cache_config.load(Ordering::Relaxed))
    }

    fn cuCtxSetCacheConfig(config: CUfunc_cache) {
        let context = current()?;
        if config > CU_FUNC_CACHE_PREFER_EQUAL {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        context.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(config: Out<CUsharedconfig>) {
        current()?;
        config.set(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
    }

    fn cuCtxSetSharedMemConfig(config: CUsharedconfig) {
        current()?;
        if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Priorities can be queried but have no effect, because the CPU's scheduler decides.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(super::streams::GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        super::handles::no_flags(flags.into())?;
        let driver = driver()?;
        let peer = driver.contexts.get(id(peer)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        driver.enable_peer(&*current()?, &peer)
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let driver = driver()?;
        let peer = driver.contexts.get(id(peer)).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        driver.disable_peer(&*current()?, &peer)
    }

    /// No profiler is ever attached, so the call does nothing.
    fn cuProfilerStart | cuProfilerStop() {
        current().map(drop)
    }
}
