//! The properties and the present state of devices.

use super::entry::{N, card, no_answer, nvml_entry_points, put, put_text};
use super::hardware::Card;
use crate::ffi::Out;
use crate::process::model::*;
use driverapi::nvml::*;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

/// The duration of a utilisation sample in microseconds. A sample is taken at the moment of the query.
const SAMPLE_MICROS: c_uint = 1;

fn mhz(model: &Model, clock: nvmlClockType_t) -> N<c_uint> {
    match clock {
        NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM => Ok(model.clock_khz / 1000),
        NVML_CLOCK_MEM => Ok(model.memory_clock_khz / 1000),
        NVML_CLOCK_VIDEO => Err(NVML_ERROR_NOT_SUPPORTED),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (slot, byte) in out.iter_mut().zip(text.bytes().take(N - 1)) {
        *slot = byte as c_char;
    }
    out
}

pub(super) fn pci_info(card: &Card) -> nvmlPciInfo_t {
    let short = format!("{:04X}:{:02X}:{:02X}.0", card.pci.domain, card.pci.bus, card.pci.device);
    nvmlPciInfo_t {
        busIdLegacy: chars(&short),
        domain: card.pci.domain,
        bus: card.pci.bus,
        device: card.pci.device,
        pciDeviceId: PCI_DEVICE_ID,
        pciSubSystemId: 0,
        busId: chars(&card.bus_id()),
    }
}

/// Stores the calling process if it uses the device. `count` holds the capacity of `out`, and receives the number of
/// processes.
fn processes<T>(device: nvmlDevice_t, count: Out<c_uint>, out: Out<T>, entry: impl Fn(c_uint, u64) -> T) -> N {
    let card = card(device)?;
    let room = count.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
    let found = card.in_use().then(|| entry(std::process::id(), card.used()));
    let users = c_uint::from(found.is_some());
    put(count, users)?;
    match found {
        Some(_) if room < users || out.is_null() => Err(NVML_ERROR_INSUFFICIENT_SIZE),
        Some(entry) => put(out, entry),
        None => Ok(()),
    }
}

fn with_instances(pid: c_uint, used: u64) -> nvmlProcessInfo_t {
    nvmlProcessInfo_t {
        pid,
        usedGpuMemory: used,
        gpuInstanceId: NVML_INSTANCE_NONE,
        computeInstanceId: NVML_INSTANCE_NONE,
    }
}

/// Stores an empty list, because there are no graphics processes.
fn no_processes(device: nvmlDevice_t, count: Out<c_uint>) -> N {
    card(device)?;
    put(count, 0)
}

nvml_entry_points! {
    fn nvmlDeviceGetName(device: nvmlDevice_t, text: Out<c_char>, size: c_uint) {
        put_text(text, card(device)?.model.name, size)
    }

    fn nvmlDeviceGetUUID(device: nvmlDevice_t, text: Out<c_char>, size: c_uint) {
        put_text(text, &card(device)?.uuid(), size)
    }

    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, number: Out<c_uint>) {
        put(number, card(device)?.index as c_uint)
    }

    fn nvmlDeviceGetBrand(device: nvmlDevice_t, brand: Out<nvmlBrandType_t>) {
        card(device)?;
        put(brand, NVML_BRAND_UNKNOWN)
    }

    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, architecture: Out<c_uint>) {
        put(architecture, card(device)?.model.nvml_architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: Out<c_int>, minor: Out<c_int>) {
        let model = card(device)?.model;
        put(major, model.capability.0)?;
        put(minor, model.capability.1)
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>) {
        let card = card(device)?;
        let used = card.used();
        put(memory, nvmlMemory_t { total: card.memory, free: card.memory - used, used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: Out<nvmlMemory_v2_t>) {
        let card = card(device)?;
        let version = memory.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?.version;
        if version != struct_version::<nvmlMemory_v2_t>(2) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let used = card.used();
        put(memory, nvmlMemory_v2_t { version, total: card.memory, reserved: 0, free: card.memory - used, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, memory: Out<nvmlBAR1Memory_t>) {
        card(device)?;
        put(memory, nvmlBAR1Memory_t::default())
    }

    fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, bits: Out<c_uint>) {
        put(bits, card(device)?.model.memory_bus_bits)
    }

    /// Stores the utilisation: 100 if a kernel of this process is running now, else 0.
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, rates: Out<nvmlUtilization_t>) {
        let gpu = if card(device)?.is_busy() { 100 } else { 0 };
        put(rates, nvmlUtilization_t { gpu, memory: 0 })
    }

    fn nvmlDeviceGetEncoderUtilization(device: nvmlDevice_t, percent: Out<c_uint>, period: Out<c_uint>) {
        card(device)?;
        put(percent, 0)?;
        put(period, SAMPLE_MICROS)
    }

    fn nvmlDeviceGetDecoderUtilization(device: nvmlDevice_t, percent: Out<c_uint>, period: Out<c_uint>) {
        card(device)?;
        put(percent, 0)?;
        put(period, SAMPLE_MICROS)
    }

    fn nvmlDeviceGetClockInfo | nvmlDeviceGetMaxClockInfo(
        device: nvmlDevice_t, clock: nvmlClockType_t, value: Out<c_uint>,
    ) {
        put(value, mhz(card(device)?.model, clock)?)
    }

    fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState(device: nvmlDevice_t, state: Out<nvmlPstates_t>) {
        card(device)?;
        put(state, NVML_PSTATE_0)
    }

    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        card(device)?;
        put(mode, NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: Out<nvmlComputeMode_t>) {
        card(device)?;
        put(mode, NVML_COMPUTEMODE_DEFAULT)
    }

    fn nvmlDeviceGetDisplayMode | nvmlDeviceGetDisplayActive(device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        card(device)?;
        put(mode, NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: Out<c_uint>) {
        card(device)?;
        put(is_mig, 0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<c_uint>) {
        card(device)?;
        put(count, 0)
    }

    fn nvmlDeviceGetPciInfo_v2 | nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, info: Out<nvmlPciInfo_t>) {
        put(info, pci_info(&card(device)?))
    }

    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, info: Out<nvmlPciInfo_t>) {
        put(info, pci_info(&card(device)?))
    }

    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t, count: Out<c_uint>, out: Out<nvmlProcessInfo_v1_t>,
    ) {
        processes(device, count, out, |pid, used| nvmlProcessInfo_v1_t { pid, usedGpuMemory: used })
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: Out<c_uint>, out: Out<nvmlProcessInfo_t>,
    ) {
        processes(device, count, out, with_instances)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t, count: Out<c_uint>, _out: Out<nvmlProcessInfo_v1_t>,
    ) {
        no_processes(device, count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, count: Out<c_uint>, _out: Out<nvmlProcessInfo_t>,
    ) {
        no_processes(device, count)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t, count: Out<c_uint>, _out: Out<nvmlProcessInfo_v1_t>,
    ) {
        no_processes(device, count)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: Out<c_uint>, _out: Out<nvmlProcessInfo_t>,
    ) {
        no_processes(device, count)
    }

    fn nvmlDeviceGetCurrentClocksThrottleReasons | nvmlDeviceGetCurrentClocksEventReasons(
        device: nvmlDevice_t, reasons: Out<c_ulonglong>,
    ) {
        card(device)?;
        put(reasons, 0)
    }

    fn nvmlDeviceGetTemperature(device: nvmlDevice_t, _sensor: nvmlTemperatureSensors_t, _degrees: Out<c_uint>) {
        no_answer(device)
    }

    fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, _milliwatts: Out<c_uint>) {
        no_answer(device)
    }

    fn nvmlDeviceGetPowerManagementLimit | nvmlDeviceGetEnforcedPowerLimit(
        device: nvmlDevice_t, _milliwatts: Out<c_uint>,
    ) {
        no_answer(device)
    }

    fn nvmlDeviceGetFanSpeed(device: nvmlDevice_t, _percent: Out<c_uint>) {
        no_answer(device)
    }

    /// Stores the same value as `CU_DEVICE_ATTRIBUTE_ECC_ENABLED`.
    fn nvmlDeviceGetEccMode(
        device: nvmlDevice_t, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>,
    ) {
        card(device)?;
        put(current, NVML_FEATURE_DISABLED)?;
        put(pending, NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        card(device)?;
        put(current, NVML_FEATURE_DISABLED)?;
        put(pending, NVML_FEATURE_DISABLED)
    }
}
