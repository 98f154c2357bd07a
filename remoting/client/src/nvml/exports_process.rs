//! The entry points for the lease's processes. All of them are compute processes. None counts as a graphics process or
//! an MPS client.

use std::ffi::c_uint;

use driverapi::nvml::*;

use super::guard::{Code, nvml_exports, read, write};
use super::library;
use crate::connect::Process;

fn old_form(process: &Process) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.memory_bytes }
}

fn new_form(process: &Process) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory_bytes,
        gpuInstanceId: NVML_INSTANCE_NONE,
        computeInstanceId: NVML_INSTANCE_NONE,
    }
}

/// Fills the caller's list. If the list is too short, stores the required length instead.
///
/// # Safety
/// `count` is null or valid. `to` is valid for writes of `*count` values, or null if `*count` is 0.
unsafe fn list<T>(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut T,
    form: impl Fn(&Process) -> T,
) -> Result<(), Code> {
    let processes = library::current()?.device(device)?.state()?.processes;
    // SAFETY: as the caller vouches.
    unsafe {
        let room = read(count)? as usize;
        write(count, processes.len() as c_uint)?;
        if room < processes.len() {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (place, process) in processes.iter().enumerate() {
            write(to.wrapping_add(place), form(process))?;
        }
    }
    Ok(())
}

/// Stores an empty list.
///
/// # Safety
/// `count` is null or valid.
unsafe fn none(device: nvmlDevice_t, count: *mut c_uint) -> Result<(), Code> {
    library::current()?.device(device)?;
    // SAFETY: as the caller vouches.
    unsafe { write(count, 0) }
}

nvml_exports! {
    fn nvmlDeviceGetComputeRunningProcesses(d: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v1_t) {
        list(d, count, to, old_form)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(d: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v2_t) {
        list(d, count, to, new_form)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(d: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlProcessInfo_v2_t) {
        list(d, count, to, new_form)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v1_t) {
        none(d, count)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v2_t) {
        none(d, count)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v2_t) {
        none(d, count)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v1_t) {
        none(d, count)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v2_t) {
        none(d, count)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(d: nvmlDevice_t, count: *mut c_uint, _to: *mut nvmlProcessInfo_v2_t) {
        none(d, count)
    }
}
