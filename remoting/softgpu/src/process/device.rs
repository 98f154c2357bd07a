//! A device: its attributes and the use of its memory.

use crate::engine::MemoryMap;
use crate::ffi::R;
use crate::process::config::{Config, PciId};
use crate::process::handles;
use crate::process::model::*;
use driverapi::attributes::*;
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use driverapi::limits;
use driverapi::nvml_links::PcieLink;
use driverapi::types::CUuuid;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

/// The imaginary PCI Express link from which programs estimate bandwidth. The clock rates are imaginary too.
pub const PCIE: PcieLink = PcieLink { generation: 4, width: 16, max_generation: 4, max_width: 16 };

pub struct Device {
    pub model: &'static Model,
    pub ordinal: usize,
    pub uuid: CUuuid,
    pub pci: PciId,
    pub memory: u64,
    /// The memory that kernels of this device may access.
    pub map: MemoryMap,
    /// The handle of the device's primary context, which stays the same when the context is created again.
    pub primary: usize,
    /// The handle of the device's default memory pool.
    pub pool: usize,
    /// The number of running kernels.
    pub running: AtomicUsize,
    used: Mutex<u64>,
}

impl Device {
    /// Creates a device. `card` is its number in the machine, and `ordinal` its number among the visible devices.
    pub fn new(config: &Config, card: usize, ordinal: usize) -> Device {
        Device {
            model: config.profile.model,
            ordinal,
            uuid: config.uuids[card],
            pci: config.pci[card],
            memory: config.memory,
            map: MemoryMap::new(),
            primary: handles::mint(),
            pool: handles::mint(),
            running: AtomicUsize::new(0),
            used: Mutex::new(0),
        }
    }

    pub fn charge(&self, bytes: u64) -> R {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = used.checked_add(bytes).filter(|&sum| sum <= self.memory).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        *used = sum;
        Ok(())
    }

    pub fn discharge(&self, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
    }

    /// Returns the bytes of device memory that a context needs for a value of a limit.
    pub fn limit_bytes(&self, limit: CUlimit, value: u64) -> u64 {
        limits::taken(limit, value, limits::resident_threads(|which| self.attribute(which).unwrap_or(0))).unwrap_or(0)
    }

    pub fn free_bytes(&self) -> u64 {
        self.memory - *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an attribute, as `cuDeviceGetAttribute` does. An attribute that is not listed is not supported and reads
    /// 0. Returns `None` for a number that CUDA does not define.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Option<i32> {
        let model = self.model;
        let value = match attribute {
            PTX_ONLY => u32::from(!model.null),
            CHECKS_BOUNDS => u32::from(!model.null),
            LIBRARY_CAPABILITY_MAJOR => model.library_capability.0 as u32,
            LIBRARY_CAPABILITY_MINOR => model.library_capability.1 as u32,
            0 | CU_DEVICE_ATTRIBUTE_MAX.. => return None,
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_THREADS_PER_BLOCK,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X => MAX_BLOCK[0],
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => MAX_BLOCK[1],
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => MAX_BLOCK[2],
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => MAX_GRID[0],
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => MAX_GRID[1],
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => MAX_GRID[2],
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => SHARED_PER_BLOCK,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => model.shared_per_block_optin,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => model.shared_per_multiprocessor,
            RESERVED_SHARED_MEMORY_PER_BLOCK => SHARED_RESERVED_PER_BLOCK,
            CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => CONSTANT_BYTES,
            CU_DEVICE_ATTRIBUTE_WARP_SIZE => WARP,
            CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX as u32,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK | CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => {
                REGISTERS
            }
            CU_DEVICE_ATTRIBUTE_CLOCK_RATE => model.clock_khz,
            CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => model.memory_clock_khz,
            CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => model.memory_bus_bits,
            CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => TEXTURE_ALIGNMENT,
            CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH => 1 << 28,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH => 1 << 17,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT => 65_000,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH => 2_097_120,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT => 1 << 16,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT => 1 << 15,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH => 1 << 14,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS
            | CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS => 1 << 11,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => model.multiprocessors,
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => MAX_THREADS_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => MAX_BLOCKS_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => model.l2_bytes,
            CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => model.async_engines,
            CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => model.capability.0 as u32,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => model.capability.1 as u32,
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => self.pci.bus,
            CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => self.pci.device,
            CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => self.pci.domain,
            CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID => PCI_DEVICE_ID,
            CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID => self.ordinal as u32,
            CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => model.mem_sync_domains,
            CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH => 1,
            CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => (model.portable_cluster > 1).into(),
            // The class of a tensor map has no effect. No attribute says that kernels can use tensor maps.
            CU_DEVICE_ATTRIBUTE_TENSOR_MAP_LARGE_TENSOR_MIN_SIZE => i32::MAX as u32,
            CU_DEVICE_ATTRIBUTE_NUMA_ID => -1i32 as u32,
            CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => 0,
            CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
            | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
            | CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
            | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
            | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
            | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
            | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
            | CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
            | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
            _ => 0,
        };
        Some(value as i32)
    }
}

/// The bytes of shared memory that the system reserves in each block. The table of attributes has no name for this
/// number.
const RESERVED_SHARED_MEMORY_PER_BLOCK: CUdevice_attribute = 111;

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device::new(&Config::read(|_| None, 1), 0, 0)
    }

    #[test]
    fn memory_is_charged_up_to_the_size() {
        let device = device();
        device.charge(5 << 30).unwrap();
        assert_eq!(device.charge(4 << 30), Err(CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(device.free_bytes(), 3 << 30);
        device.discharge(5 << 30);
        device.charge(8 << 30).unwrap();
        assert_eq!(device.charge(u64::MAX), Err(CUDA_ERROR_OUT_OF_MEMORY));
    }

    #[test]
    fn what_is_not_provided_reads_zero_and_what_does_not_exist_is_refused() {
        let device = device();
        for absent in [
            CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
            CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
        ] {
            assert_eq!(device.attribute(absent), Some(0));
        }
        assert_eq!(device.attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH), Some(1));
        assert_eq!(device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), Some(8));
        assert_eq!(device.attribute(0), None);
        assert_eq!(device.attribute(100_000), None);
    }
}
