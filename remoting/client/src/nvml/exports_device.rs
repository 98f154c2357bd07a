//! The entry points for properties of a device that do not change during a lease.

use std::ffi::{c_char, c_int, c_uint};

use driverapi::attributes::*;
use driverapi::nvml::*;

use super::guard::{Code, nvml_exports, text, write, write_text};
use super::library::{self, Device};
use super::text::{architecture, bus_id, field, legacy_bus_id, parse_bus_id, uuid};

/// Returns the `NVML_BRAND_*` value for a marketing name.
fn brand(name: &str) -> nvmlBrandType_t {
    match name.split_whitespace().next() {
        Some("NVIDIA") => NVML_BRAND_NVIDIA,
        Some("Tesla") => NVML_BRAND_TESLA,
        _ => NVML_BRAND_UNKNOWN,
    }
}

fn capability(device: &Device) -> (i32, i32) {
    let attribute = |number| device.attribute(number).unwrap_or(0);
    (attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
}

pub(super) fn pci(device: &Device) -> nvmlPciInfo_t {
    let place @ [domain, bus, number] = device.info.pci;
    nvmlPciInfo_t {
        busIdLegacy: field(&legacy_bus_id(place)),
        domain,
        bus,
        device: number,
        // The PCI address is the share's own. There is no vendor's device at this address.
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: field(&bus_id(place)),
    }
}

fn by_index(index: c_uint) -> Result<nvmlDevice_t, Code> {
    library::current()?.devices.get(index as usize).map(Device::handle).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

/// Returns an attribute in MHz. CUDA reports it in kHz.
fn megahertz(device: &Device, attribute: CUdevice_attribute) -> Result<c_uint, Code> {
    device.attribute(attribute).map(|kilohertz| kilohertz as c_uint / 1000).ok_or(NVML_ERROR_NOT_SUPPORTED)
}

/// Returns the device with this PCI address.
///
/// # Safety
/// `bus_id` is null or a string.
unsafe fn by_bus_id(bus_id: *const c_char) -> Result<nvmlDevice_t, Code> {
    // SAFETY: as the caller vouches.
    let wanted = parse_bus_id(unsafe { text(bus_id) }?).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    library::current()?.find(|device| device.info.pci == wanted)
}

nvml_exports! {
    fn nvmlDeviceGetCount(count: *mut c_uint) { write(count, library::current()?.devices.len() as c_uint) }
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) { write(count, library::current()?.devices.len() as c_uint) }
    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t) { write(device, by_index(index)?) }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) { write(device, by_index(index)?) }
    fn nvmlDeviceGetHandleByUUID(wanted: *const c_char, device: *mut nvmlDevice_t) {
        let (library, wanted) = (library::current()?, text(wanted)?);
        write(device, library.find(|device| uuid(&device.info.uuid).eq_ignore_ascii_case(wanted))?)
    }
    fn nvmlDeviceGetHandleByPciBusId(bus_id: *const c_char, device: *mut nvmlDevice_t) {
        write(device, by_bus_id(bus_id)?)
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut nvmlDevice_t) {
        write(device, by_bus_id(bus_id)?)
    }
    fn nvmlDeviceGetHandleBySerial(serial: *const c_char, _device: *mut nvmlDevice_t) {
        // A share has no serial number, so none is found.
        library::current()?;
        text(serial).and(Err(NVML_ERROR_NOT_FOUND))
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) {
        write_text(name, length, &library::current()?.device(device)?.info.name)
    }
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        write_text(to, length, &uuid(&library::current()?.device(device)?.info.uuid))
    }
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) {
        write(index, library::current()?.device(device)?.index)
    }
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) {
        write(minor, library::current()?.device(device)?.index)
    }
    fn nvmlDeviceGetBrand(device: nvmlDevice_t, to: *mut nvmlBrandType_t) {
        write(to, brand(&library::current()?.device(device)?.info.name))
    }
    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, to: *mut c_uint) {
        let (major, minor) = capability(library::current()?.device(device)?);
        write(to, architecture(major, minor))
    }
    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, to_major: *mut c_int, to_minor: *mut c_int) {
        let (major, minor) = capability(library::current()?.device(device)?);
        write(to_major, major)?;
        write(to_minor, minor)
    }

    // Each version of the structure begins with the fields of the previous version. Only the fields of the caller's
    // version are written.
    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, to: *mut [u8; 32]) {
        let info = pci(library::current()?.device(device)?);
        write(to, (&raw const info).cast::<[u8; 32]>().read())
    }
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, to: *mut [u8; 36]) {
        let info = pci(library::current()?.device(device)?);
        write(to, (&raw const info).cast::<[u8; 36]>().read())
    }
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, to: *mut nvmlPciInfo_t) {
        write(to, pci(library::current()?.device(device)?))
    }

    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, clock: nvmlClockType_t, to: *mut c_uint) {
        let library = library::current()?;
        let device = library.device(device)?;
        write(to, match clock {
            NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM => megahertz(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            NVML_CLOCK_MEM => megahertz(device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            NVML_CLOCK_VIDEO => return Err(NVML_ERROR_NOT_SUPPORTED),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        })
    }
    fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, to: *mut c_uint) {
        let width = library::current()?.device(device)?.attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
        write(to, width.ok_or(NVML_ERROR_NOT_SUPPORTED)? as c_uint)
    }
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, now: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t) {
        let enabled = library::current()?.device(device)?.attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED).unwrap_or(0);
        write(now, enabled as nvmlEnableState_t)?;
        write(pending, enabled as nvmlEnableState_t)
    }
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, to: *mut nvmlComputeMode_t) {
        let mode = library::current()?.device(device)?.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE).unwrap_or(0);
        write(to, mode as nvmlComputeMode_t)
    }
    // The appliance keeps its GPUs initialised.
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        library::current()?.device(device)?;
        write(to, NVML_FEATURE_ENABLED)
    }
    // A share is not a MIG instance, whatever the GPU is.
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, now: *mut c_uint, pending: *mut c_uint) {
        library::current()?.device(device)?;
        write(now, NVML_FEATURE_DISABLED)?;
        write(pending, NVML_FEATURE_DISABLED)
    }
    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, to: *mut c_uint) {
        library::current()?.device(device)?;
        write(to, 0)
    }
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, to: *mut c_uint) {
        library::current()?.device(device)?;
        write(to, 0)
    }
    fn nvmlDeviceGetDisplayMode(device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        library::current()?.device(device)?;
        write(to, NVML_FEATURE_DISABLED)
    }
    fn nvmlDeviceGetDisplayActive(device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        library::current()?.device(device)?;
        write(to, NVML_FEATURE_DISABLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brands_are_told_by_the_name() {
        assert_eq!(brand("NVIDIA A100-SXM4-80GB"), 14);
        assert_eq!(brand("Tesla V100-SXM2-16GB"), 2);
        assert_eq!(brand("remotegpu software GPU"), 0);
    }
}
