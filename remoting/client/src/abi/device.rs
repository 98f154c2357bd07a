//! The entry points for devices. All results come from the description in the appliance's `Hello`.

use crate::Code;
use crate::boundary::{failed, guard, text, write, write_text};
use crate::devices::{self, Device};
use crate::exports;
use crate::program::stats::Counter;
use driverapi::attributes::*;
use driverapi::caller::is_cuda_library;
use driverapi::constants::{CU_EXEC_AFFINITY_TYPE_MAX, CU_EXEC_AFFINITY_TYPE_SM_COUNT};
use driverapi::errors::*;
use driverapi::export_with_caller;
use driverapi::types::{CUdevice, CUdevprop, CUuuid};
use std::ffi::{c_char, c_int, c_uint};

exports! {
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        write(device, devices::get(ordinal)?.ordinal)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        write(count, devices::all()?.len() as c_int)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) {
        let device = devices::get(device)?;
        write_text(name, usize::try_from(len).unwrap_or(0), &device.info.name)
    }

    fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) {
        write(uuid, CUuuid { bytes: devices::get(device)?.info.uuid })
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) {
        write(uuid, CUuuid { bytes: devices::get(device)?.info.uuid })
    }

    fn cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice) {
        write(bytes, u32::try_from(devices::get(device)?.info.memory_bytes).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        write(bytes, devices::get(device)?.info.memory_bytes as usize)
    }

    fn cuDeviceGetProperties(properties: *mut CUdevprop, device: CUdevice) {
        let device = devices::get(device)?;
        let get = |attribute| device.attribute(attribute);
        write(properties, CUdevprop {
            maxThreadsPerBlock: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            maxThreadsDim: device.launch_limits().block.map(|n| n as c_int),
            maxGridSize: device.launch_limits().grid.map(|n| n as c_int),
            sharedMemPerBlock: get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            totalConstantMemory: get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
            SIMDWidth: get(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            memPitch: get(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
            regsPerBlock: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
            clockRate: get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            textureAlign: get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
        })
    }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: CUdevice) {
        let device = devices::get(device)?;
        write(major, device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR))?;
        write(minor, device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
    }

    fn cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char) {
        let wanted = parse_pci(text(id)?.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?);
        let wanted = wanted.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let found = devices::all()?.iter().find(|d| d.info.pci == wanted).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        write(device, found.ordinal)
    }

    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) {
        let [domain, bus, number] = devices::get(device)?.info.pci;
        write_text(id, usize::try_from(len).unwrap_or(0), &format!("{domain:04X}:{bus:02X}:{number:02X}.0"))
    }

    fn cuDeviceGetExecAffinitySupport(value: *mut c_int, kind: c_uint, device: CUdevice) {
        devices::get(device)?;
        if !(CU_EXEC_AFFINITY_TYPE_SM_COUNT..CU_EXEC_AFFINITY_TYPE_MAX).contains(&kind) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(value, 0)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) {
        let (device, peer) = (devices::get(device)?, devices::get(peer)?);
        write(can, device.can_reach(peer).into())
    }

    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, from: CUdevice, to: CUdevice) {
        let (from, to) = (devices::get(from)?, devices::get(to)?);
        let known = CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK..=CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED;
        if !known.contains(&attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if from.ordinal == to.ordinal {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        write(value, from.peer_attribute(to, attribute))
    }

    fn cuModuleGetLoadingMode(mode: *mut c_uint) {
        devices::all()?;
        write(mode, driverapi::settings::module_loading())
    }
}

export_with_caller! {
    fn cuDeviceGetAttribute(value, attribute, device) = attribute_for_caller;
}

/// Implements `cuDeviceGetAttribute`. `caller` is the address that the call returns to.
///
/// # Safety
/// Same as for an exported function.
unsafe extern "C" fn attribute_for_caller(
    value: *mut c_int,
    attribute: c_uint,
    device: CUdevice,
    caller: usize,
) -> Code {
    static COUNTER: Counter = Counter::new("cuDeviceGetAttribute");
    let code = guard(&COUNTER, || {
        let device = devices::get(device)?;
        if attribute == 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Only the description of a software GPU has separate values for NVIDIA's libraries. A real GPU gives every
        // caller the same value.
        let library = for_libraries(attribute);
        let told =
            library != attribute && device.info.attributes.contains_key(&(library as i32)) && is_cuda_library(caller);
        // SAFETY: as the caller of the exported function vouches.
        unsafe { write(value, attribute_of(device, if told { library } else { attribute })) }
    });
    if code != 0 {
        failed(COUNTER.name, code, &[0, attribute.into()]);
    }
    code
}

/// Returns an attribute's value. The PCI address is the share's own, whatever the GPU's attributes contain.
fn attribute_of(device: &Device, attribute: u32) -> c_int {
    match attribute {
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => device.info.pci[0] as c_int,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device.info.pci[1] as c_int,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => device.info.pci[2] as c_int,
        other => device.attribute(other),
    }
}

/// Parses `[domain:]bus:device[.function]` in hexadecimal.
fn parse_pci(text: &str) -> Option<[u32; 3]> {
    let text = text.split_once('.').map_or(text, |(place, _)| place);
    let parts: Option<Vec<u32>> = text.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    match parts?[..] {
        [bus, device] => Some([0, bus, device]),
        [domain, bus, device] => Some([domain, bus, device]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_pci;

    #[test]
    fn pci_places_in_the_forms_that_cuda_takes() {
        assert_eq!(parse_pci("0000:3B:00.0"), Some([0, 0x3b, 0]));
        assert_eq!(parse_pci("1:2:1f"), Some([1, 2, 0x1f]));
        assert_eq!(parse_pci("3b:00"), Some([0, 0x3b, 0]));
        assert_eq!(parse_pci("x:1"), None);
        assert_eq!(parse_pci(""), None);
    }
}
