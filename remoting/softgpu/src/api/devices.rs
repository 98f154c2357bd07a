//! The entry points for initialisation (`cuInit`) and for device queries.

use super::entry::entry_points;
use crate::driver::{self, driver};
use crate::ffi::{Out, Text, edge, failed};
use crate::process::config::parse_pci;
use crate::process::device::Device;
use driverapi::attributes::*;
use driverapi::caller::is_cuda_library;
use driverapi::errors::*;
use driverapi::export_with_caller;
use driverapi::report;
use driverapi::types::*;
use std::ffi::{c_char, c_int, c_uint};

entry_points! {
    fn cuInit(flags: c_uint) {
        super::handles::no_flags(flags.into())?;
        report::started();
        driver::init()
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(driver::config().driver_version)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: c_int) {
        driver()?.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(driver()?.devices.len() as c_int)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: CUdevice) {
        let model = driver()?.device(device)?.model;
        name.set_text(model.name, usize::try_from(len).map_err(|_| CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuDeviceGetUuid | cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: CUdevice) {
        uuid.set(driver()?.device(device)?.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        bytes.set(driver()?.device(device)?.memory as usize)
    }

    /// This form is from a time of 32-bit sizes, so it returns at most `u32::MAX` bytes.
    fn cuDeviceTotalMem(bytes: Out<c_uint>, device: CUdevice) {
        bytes.set(u32::try_from(driver()?.device(device)?.memory).unwrap_or(u32::MAX))
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice) {
        let model = driver()?.device(device)?.model;
        major.set(model.capability.0)?;
        minor.set(model.capability.1)
    }

    fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: CUdevice) {
        properties.set(old_properties(driver()?.device(device)?))
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, len: c_int, device: CUdevice) {
        let pci = driver()?.device(device)?.pci;
        let bus_id = format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
        text.set_text(&bus_id, usize::try_from(len).map_err(|_| CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, bus_id: Text) {
        let driver = driver()?;
        let pci = parse_pci(bus_id.get()?).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let found = driver.devices.iter().find(|d| d.pci == pci).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        device.set(found.ordinal as CUdevice)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice) {
        let driver = driver()?;
        let (device, peer) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        can.set(driver.can_access(device, peer).into())
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: CUdevice_P2PAttribute, source: CUdevice, target: CUdevice) {
        let driver = driver()?;
        driver.device(source).and(driver.device(target))?;
        if !(1..=CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED).contains(&attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if source == target {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        // All devices run on one CPU, so atomics work between devices. Arrays of a peer device cannot be accessed.
        let supported = [CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED];
        value.set(supported.contains(&attribute).into())
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<c_int>, kind: c_uint, device: CUdevice) {
        driver()?.device(device)?;
        super::handles::no_flags(kind.into())?;
        supported.set(0)
    }

    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) {
        let driver = driver()?;
        let context = context.required()?;
        context.set(super::handles::handle(driver.retain_primary(driver.device(device)?)?))
    }

    fn cuDevicePrimaryCtxRelease | cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        let driver = driver()?;
        driver.release_primary(driver.device(device)?)
    }

    fn cuDevicePrimaryCtxReset | cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        let driver = driver()?;
        driver.reset_primary(driver.device(device)?)
    }

    fn cuDevicePrimaryCtxSetFlags | cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) {
        let driver = driver()?;
        super::contexts::check_flags(flags)?;
        driver.set_primary_flags(driver.device(device)?, flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = driver()?;
        let (now, alive) = driver.primary_state(driver.device(device)?);
        flags.set(now)?;
        active.set(alive.into())
    }
}

export_with_caller! {
    fn cuDeviceGetAttribute(value, attribute, device) = attribute_for_caller;
}

extern "C" fn attribute_for_caller(
    value: Out<c_int>,
    attribute: CUdevice_attribute,
    device: CUdevice,
    caller: usize,
) -> CUresult {
    let code = edge(|| {
        let device = driver()?.device(device)?;
        let library = for_libraries(attribute);
        let told = library != attribute && is_cuda_library(caller);
        value.set(device.attribute(if told { library } else { attribute }).ok_or(CUDA_ERROR_INVALID_VALUE)?)
    });
    if code != 0 {
        failed("cuDeviceGetAttribute", code, &[0, attribute.into()]);
    }
    code
}

fn old_properties(device: &Device) -> CUdevprop {
    let read = |attribute| device.attribute(attribute).unwrap_or(0);
    CUdevprop {
        maxThreadsPerBlock: read(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        maxThreadsDim: [
            read(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
            read(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
            read(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
        ],
        maxGridSize: [
            read(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
            read(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
            read(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        ],
        sharedMemPerBlock: read(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        totalConstantMemory: read(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        SIMDWidth: read(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        memPitch: read(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        regsPerBlock: read(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        clockRate: read(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        textureAlign: read(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    }
}
