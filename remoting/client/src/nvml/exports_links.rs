//! The entry points for links of a device: its PCIe slot, and no link to other devices (`driverapi::nvml_links`).

use std::ffi::{c_int, c_uint, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use driverapi::nvml::*;
use driverapi::nvml_links::{self, *};

use super::exports_device::pci;
use super::guard::{Code, nvml_exports, read, write};
use super::library;

fn pcie(device: nvmlDevice_t) -> Result<PcieLink, Code> {
    library::current()?.device(device)?.state()?.pcie.ok_or(NVML_ERROR_NOT_SUPPORTED)
}

fn are_same(one: nvmlDevice_t, other: nvmlDevice_t) -> Result<bool, Code> {
    let library = library::current()?;
    Ok(library.device(one)?.index == library.device(other)?.index)
}

/// Returns `code` for a feature that no device has, after the checks of the library and the handle.
fn lacking(device: nvmlDevice_t, code: Code) -> Result<(), Code> {
    library::current()?.device(device)?;
    Err(code)
}

nvml_exports! {
    // `Gpu...` stands for the maximum of the GPU alone. The appliance reports only the maximum together with the slot,
    // so this is a lower bound.
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, pcie(device)?.max_generation)
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, pcie(device)?.max_generation)
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) { write(to, pcie(device)?.max_width) }
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) { write(to, pcie(device)?.generation) }
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) { write(to, pcie(device)?.width) }
    fn nvmlDeviceGetPcieLinkMaxSpeed(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, max_speed(pcie(device)?.max_generation)?)
    }
    fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, to: *mut c_uint) {
        write(to, lane_speed(pcie(device)?.generation)?)
    }
    // The slot's traffic includes all programs that share the GPU, so it is not reported.
    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, to: *mut c_uint) {
        let valid = counter <= 1 && !to.is_null();
        lacking(device, if valid { NVML_ERROR_NOT_SUPPORTED } else { NVML_ERROR_INVALID_ARGUMENT })
    }
    fn nvmlDeviceGetBusType(device: nvmlDevice_t, to: *mut nvmlBusType_t) {
        library::current()?.device(device)?;
        write(to, NVML_BUS_TYPE_PCIE)
    }
    fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, to: *mut nvmlPciInfoExt_v1_t) {
        let info = pci(library::current()?.device(device)?);
        let version = read(to.cast::<c_uint>())?;
        if version != struct_version::<nvmlPciInfoExt_v1_t>(1) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        write(to, pci_ext(&info, version))
    }

    fn nvmlDeviceGetP2PStatus(one: nvmlDevice_t, other: nvmlDevice_t, index: c_uint, to: *mut nvmlGpuP2PStatus_t) {
        let library = library::current()?;
        write(to, p2p_status(library.device(one)?.reach(library.device(other)?), index)?)
    }
    fn nvmlDeviceGetTopologyCommonAncestor(one: nvmlDevice_t, other: nvmlDevice_t, to: *mut nvmlGpuTopologyLevel_t) {
        write(to, common_ancestor(are_same(one, other)?))
    }

    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, to: *mut nvmlEnableState_t) {
        lacking(device, no_link(link, !to.is_null()))
    }
    fn nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, to: *mut c_uint) {
        lacking(device, no_link(link, !to.is_null()))
    }
    fn nvmlDeviceGetNvLinkCapability(device: nvmlDevice_t, link: c_uint, capability: c_uint, to: *mut c_uint) {
        lacking(device, no_link_capability(link, capability, !to.is_null()))
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo(device: nvmlDevice_t, link: c_uint, to: *mut c_void) {
        lacking(device, no_link(link, !to.is_null()))
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, to: *mut nvmlPciInfo_t) {
        lacking(device, no_link(link, !to.is_null()))
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: nvmlDevice_t, link: c_uint, to: *mut c_uint) {
        lacking(device, no_link(link, !to.is_null()))
    }
    fn nvmlDeviceGetGpuFabricInfo(device: nvmlDevice_t, _to: *mut c_void) { lacking(device, NVML_ERROR_NOT_SUPPORTED) }
    fn nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, _to: *mut c_void) { lacking(device, NVML_ERROR_NOT_SUPPORTED) }

    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) {
        library::current()?.device(device)?;
        let count = usize::try_from(count).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
        if values.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
        for place in 0..count {
            let value = values.wrapping_add(place);
            write(value, nvml_links::fill(read(value)?, now))?;
        }
        Ok(())
    }
}
