//! The entry points for the changing state of a device, which the appliance reports.

use std::ffi::c_uint;

use driverapi::nvml::*;

use super::guard::{Code, nvml_exports, read, write};
use super::library;
use crate::connect::DeviceState;

fn state(device: nvmlDevice_t) -> Result<DeviceState, Code> {
    library::current()?.device(device)?.state()
}

/// Returns the size of the share's memory, and its used and free bytes. Only the memory of the lease counts as used.
fn memory(device: nvmlDevice_t) -> Result<nvmlMemory_t, Code> {
    let library = library::current()?;
    let device = library.device(device)?;
    let state = device.state()?;
    let (total, used) = (state.memory_bytes, state.memory_used_bytes.min(state.memory_bytes));
    Ok(nvmlMemory_t { total, free: total - used, used })
}

fn known(value: Option<u32>) -> Result<u32, Code> {
    value.ok_or(NVML_ERROR_NOT_SUPPORTED)
}

nvml_exports! {
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, to: *mut nvmlMemory_t) { write(to, memory(device)?) }
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut nvmlMemory_v2_t) {
        let version = read(to.cast::<c_uint>())?;
        if version != struct_version::<nvmlMemory_v2_t>(2) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let nvmlMemory_t { total, free, used } = memory(device)?;
        write(to, nvmlMemory_v2_t { version, total, reserved: 0, free, used })
    }
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, to: *mut nvmlUtilization_t) {
        let state = state(device)?;
        let memory = state.memory_utilization_percent.unwrap_or(0);
        write(to, nvmlUtilization_t { gpu: known(state.gpu_utilization_percent)?, memory })
    }
    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, to: *mut c_uint) {
        let state = state(device)?;
        if sensor != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        write(to, known(state.temperature_celsius)?)
    }
    fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, to: *mut nvmlTemperature_v1_t) {
        let asked = read(to)?;
        if asked.version != struct_version::<nvmlTemperature_v1_t>(1) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensorType != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let temperature = known(state(device)?.temperature_celsius)? as i32;
        write(to, nvmlTemperature_v1_t { temperature, ..asked })
    }
    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, known(state(device)?.power_milliwatt)?)
    }
    fn nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, known(state(device)?.power_limit_milliwatt)?)
    }
    fn nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, known(state(device)?.power_limit_milliwatt)?)
    }
    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, clock: nvmlClockType_t, to: *mut c_uint) {
        let state = state(device)?;
        write(to, match clock {
            NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM => known(state.sm_clock_mhz)?,
            NVML_CLOCK_MEM => known(state.memory_clock_mhz)?,
            NVML_CLOCK_VIDEO => return Err(NVML_ERROR_NOT_SUPPORTED),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        })
    }
}
