//! NVML's answers about a GPU's connections, which are PCI Express only. A program sees one GPU, or several without
//! access to each other (`cuDeviceCanAccessPeer` returns 0), so there is no NVLink, no fabric and no C2C.
//!
//! The codes are those of NVML's reference (docs.nvidia.com/deploy/nvml-api, groups "Device Queries", "NvLink Methods"
//! and "Field Value Queries"): NVML_ERROR_INVALID_ARGUMENT for a wrong device, link or NULL, then
//! NVML_ERROR_NOT_SUPPORTED "if the device doesn't support this feature".

#![allow(non_camel_case_types)]

use crate::nvml::*;
use std::ffi::c_uint;

pub type nvmlGpuP2PCapsIndex_t = c_uint;
pub const NVML_P2P_CAPS_INDEX_READ: nvmlGpuP2PCapsIndex_t = 0;
pub const NVML_P2P_CAPS_INDEX_WRITE: nvmlGpuP2PCapsIndex_t = 1;
pub const NVML_P2P_CAPS_INDEX_NVLINK: nvmlGpuP2PCapsIndex_t = 2;
pub const NVML_P2P_CAPS_INDEX_ATOMICS: nvmlGpuP2PCapsIndex_t = 3;
pub const NVML_P2P_CAPS_INDEX_PCI: nvmlGpuP2PCapsIndex_t = 4;

pub type nvmlGpuP2PStatus_t = c_uint;
pub const NVML_P2P_STATUS_OK: nvmlGpuP2PStatus_t = 0;
pub const NVML_P2P_STATUS_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 5;

pub type nvmlBusType_t = c_uint;
pub const NVML_BUS_TYPE_PCIE: nvmlBusType_t = 2;

pub type nvmlGpuTopologyLevel_t = c_uint;
pub const NVML_TOPOLOGY_INTERNAL: nvmlGpuTopologyLevel_t = 0;
pub const NVML_TOPOLOGY_SYSTEM: nvmlGpuTopologyLevel_t = 50;

/// The number of links that NVML's functions accept. It does not depend on the device.
const NVML_NVLINK_MAX_LINKS: c_uint = 36;
const NVML_NVLINK_CAP_COUNT: c_uint = 6;

const NVML_FI_DEV_NVLINK_LINK_COUNT: c_uint = 91;
const NVML_FI_DEV_C2C_LINK_COUNT: c_uint = 170;
/// The largest field number of the header, plus one.
const NVML_FI_MAX: c_uint = 310;
const NVML_VALUE_TYPE_UNSIGNED_INT: c_uint = 1;

/// The PCI Express link of a GPU: its current values, and the maximum of GPU and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    pub generation: u32,
    pub width: u32,
    pub max_generation: u32,
    pub max_width: u32,
}

/// Returns the speed of an x1 link of a generation in units of 10^6 transfers per second.
///
/// # Errors
/// `NVML_ERROR_NOT_SUPPORTED` for a generation that the header does not define.
pub fn lane_speed(generation: u32) -> Result<u32, nvmlReturn_t> {
    Ok(match generation {
        1 => 2_500,
        2 => 5_000,
        3 => 8_000,
        4 => 16_000,
        5 => 32_000,
        6 => 64_000,
        _ => return Err(NVML_ERROR_NOT_SUPPORTED),
    })
}

/// Returns `NVML_PCIE_LINK_MAX_SPEED_*` of a generation. The constants have the same numbers as the generations.
///
/// # Errors
/// The errors of `lane_speed`.
pub fn max_speed(generation: u32) -> Result<u32, nvmlReturn_t> {
    lane_speed(generation).map(|_| generation)
}

/// A device's access to another device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    pub memory: bool,
    pub atomics: bool,
}

impl Reach {
    /// A device's access to itself.
    pub const OWN: Reach = Reach { memory: true, atomics: true };
}

/// Returns whether one device can access the other's memory. The kind of link is not reported.
///
/// # Errors
/// `NVML_ERROR_INVALID_ARGUMENT` for an unknown index.
pub fn p2p_status(reach: Reach, index: nvmlGpuP2PCapsIndex_t) -> Result<nvmlGpuP2PStatus_t, nvmlReturn_t> {
    match index {
        NVML_P2P_CAPS_INDEX_READ | NVML_P2P_CAPS_INDEX_WRITE if reach.memory => Ok(NVML_P2P_STATUS_OK),
        NVML_P2P_CAPS_INDEX_ATOMICS if reach.atomics => Ok(NVML_P2P_STATUS_OK),
        NVML_P2P_CAPS_INDEX_READ..=NVML_P2P_CAPS_INDEX_PCI => Ok(NVML_P2P_STATUS_NOT_SUPPORTED),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

/// Returns the topology level of two devices' common ancestor. Different devices may be on different machines.
pub fn common_ancestor(same: bool) -> nvmlGpuTopologyLevel_t {
    if same { NVML_TOPOLOGY_INTERNAL } else { NVML_TOPOLOGY_SYSTEM }
}

/// Returns the error code of an NVLink function for `link`. No device has a link. `has_room` is whether the caller's
/// pointer is not null.
pub fn no_link(link: c_uint, has_room: bool) -> nvmlReturn_t {
    let valid = link < NVML_NVLINK_MAX_LINKS && has_room;
    if valid { NVML_ERROR_NOT_SUPPORTED } else { NVML_ERROR_INVALID_ARGUMENT }
}

pub fn no_link_capability(link: c_uint, capability: c_uint, has_room: bool) -> nvmlReturn_t {
    no_link(link, has_room && capability < NVML_NVLINK_CAP_COUNT)
}

/// Converts the data of `nvmlDeviceGetPciInfo_v3` to the newer structure. The device is a 3D controller (PCI Code and
/// ID Assignment, class 03, subclass 02).
pub fn pci_ext(info: &nvmlPciInfo_t, version: c_uint) -> nvmlPciInfoExt_v1_t {
    nvmlPciInfoExt_v1_t {
        version,
        domain: info.domain,
        bus: info.bus,
        device: info.device,
        pciDeviceId: info.pciDeviceId,
        pciSubSystemId: info.pciSubSystemId,
        baseClass: 3,
        subClass: 2,
        busId: info.busId,
    }
}

/// Returns one result of `nvmlDeviceGetFieldValues`.
pub fn fill(field: nvmlFieldValue_t, microseconds: i64) -> nvmlFieldValue_t {
    let (result, value) = match field.fieldId {
        NVML_FI_DEV_NVLINK_LINK_COUNT | NVML_FI_DEV_C2C_LINK_COUNT => (NVML_SUCCESS, 0),
        1..NVML_FI_MAX => (NVML_ERROR_NOT_SUPPORTED, field.value),
        _ => (NVML_ERROR_INVALID_ARGUMENT, field.value),
    };
    let answered = nvmlFieldValue_t { timestamp: microseconds, latencyUsec: 0, nvmlReturn: result, value, ..field };
    if result == NVML_SUCCESS {
        nvmlFieldValue_t { valueType: NVML_VALUE_TYPE_UNSIGNED_INT, ..answered }
    } else {
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_devices_are_not_told() {
        let all = |memory, atomics| [0, 1, 2, 3, 4].map(|index| p2p_status(Reach { memory, atomics }, index));
        assert_eq!(all(true, true), [Ok(0), Ok(0), Ok(5), Ok(0), Ok(5)]);
        assert_eq!(all(true, false), [Ok(0), Ok(0), Ok(5), Ok(5), Ok(5)]);
        assert_eq!(all(false, false), [Ok(5); 5]);
        assert_eq!(p2p_status(Reach::OWN, 5), Err(NVML_ERROR_INVALID_ARGUMENT));
    }

    #[test]
    fn wrong_links_are_told_from_links_that_are_not_there() {
        assert_eq!(no_link(0, true), NVML_ERROR_NOT_SUPPORTED);
        assert_eq!(no_link(36, true), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(no_link(0, false), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(no_link_capability(0, 6, true), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(no_link_capability(0, 5, true), NVML_ERROR_NOT_SUPPORTED);
    }

    #[test]
    fn a_generation_doubles_the_one_before_but_for_the_change_of_code() {
        let speeds: Vec<_> = (1..=6).filter_map(|generation| lane_speed(generation).ok()).collect();
        assert_eq!(speeds, [2_500, 5_000, 8_000, 16_000, 32_000, 64_000]);
        assert_eq!((max_speed(5), max_speed(0)), (Ok(5), Err(NVML_ERROR_NOT_SUPPORTED)));
    }

    #[test]
    fn each_field_has_its_own_code() {
        let ask = |field| fill(nvmlFieldValue_t { fieldId: field, value: 9, ..Default::default() }, 4);
        let links = ask(91);
        assert_eq!((links.nvmlReturn, links.value, links.valueType, links.timestamp), (NVML_SUCCESS, 0, 1, 4));
        assert_eq!([0, 84, 309, 310].map(|id| ask(id).nvmlReturn), [2, 3, 3, 2]);
    }
}
