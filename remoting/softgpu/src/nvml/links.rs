//! The connections of a device: an imaginary PCI Express slot, and no link to another device (`driverapi::nvml_links`).

use super::entry::{N, card, nvml_entry_points, put};
use super::info::pci_info;
use crate::ffi::Out;
use crate::process::device::PCIE;
use driverapi::nvml::*;
use driverapi::nvml_links::{self, *};
use std::ffi::{c_int, c_uint, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

fn are_same(one: nvmlDevice_t, other: nvmlDevice_t) -> N<bool> {
    Ok(card(one)?.index == card(other)?.index)
}

/// Returns the error of a function whose feature no device has. `code` is the result of the checks of its arguments.
fn lacking(device: nvmlDevice_t, code: nvmlReturn_t) -> N {
    card(device)?;
    Err(code)
}

nvml_entry_points! {
    fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration(
        device: nvmlDevice_t, value: Out<c_uint>,
    ) {
        card(device)?;
        put(value, PCIE.max_generation)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, value: Out<c_uint>) {
        card(device)?;
        put(value, PCIE.generation)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, value: Out<c_uint>) {
        card(device)?;
        put(value, PCIE.max_width)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, value: Out<c_uint>) {
        card(device)?;
        put(value, PCIE.width)
    }

    fn nvmlDeviceGetPcieLinkMaxSpeed(device: nvmlDevice_t, value: Out<c_uint>) {
        card(device)?;
        put(value, max_speed(PCIE.max_generation)?)
    }

    fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, value: Out<c_uint>) {
        card(device)?;
        put(value, lane_speed(PCIE.generation)?)
    }

    fn nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, value: Out<c_uint>) {
        let valid = counter <= 1 && !value.is_null();
        lacking(device, if valid { NVML_ERROR_NOT_SUPPORTED } else { NVML_ERROR_INVALID_ARGUMENT })
    }

    fn nvmlDeviceGetBusType(device: nvmlDevice_t, kind: Out<nvmlBusType_t>) {
        card(device)?;
        put(kind, NVML_BUS_TYPE_PCIE)
    }

    fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, info: Out<nvmlPciInfoExt_v1_t>) {
        let card = card(device)?;
        let version = info.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?.version;
        if version != struct_version::<nvmlPciInfoExt_v1_t>(1) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        put(info, pci_ext(&pci_info(&card), version))
    }

    fn nvmlDeviceGetP2PStatus(
        one: nvmlDevice_t, other: nvmlDevice_t, index: nvmlGpuP2PCapsIndex_t, status: Out<nvmlGpuP2PStatus_t>,
    ) {
        // Peer access is possible between any two different devices, as in `cuDeviceCanAccessPeer`.
        are_same(one, other)?;
        put(status, p2p_status(Reach::OWN, index)?)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        one: nvmlDevice_t, other: nvmlDevice_t, level: Out<nvmlGpuTopologyLevel_t>,
    ) {
        put(level, common_ancestor(are_same(one, other)?))
    }

    fn nvmlDeviceGetNvLinkState | nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, value: Out<c_uint>) {
        lacking(device, no_link(link, !value.is_null()))
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: nvmlDevice_t, link: c_uint, value: Out<c_uint>) {
        lacking(device, no_link(link, !value.is_null()))
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo | nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t, link: c_uint, info: Out<c_void>,
    ) {
        lacking(device, no_link(link, !info.is_null()))
    }

    fn nvmlDeviceGetNvLinkCapability(
        device: nvmlDevice_t, link: c_uint, capability: c_uint, value: Out<c_uint>,
    ) {
        lacking(device, no_link_capability(link, capability, !value.is_null()))
    }

    fn nvmlDeviceGetGpuFabricInfo | nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, _info: Out<c_void>) {
        lacking(device, NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: Out<nvmlFieldValue_t>) {
        card(device)?;
        let count = usize::try_from(count).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
        if values.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
        for place in 0..count {
            let value = Out::at(values.address().wrapping_add(place));
            let asked = value.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
            put(value, nvml_links::fill(asked, now))?;
        }
        Ok(())
    }
}
