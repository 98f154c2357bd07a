//! C types and return codes of NVML (the management library) on x86-64 Linux.

#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::mem::size_of;

pub type nvmlDevice_t = *mut c_void;
pub type nvmlReturn_t = c_uint;

/// Buffer sizes that are sufficient according to NVML's documentation.
pub const NVML_DEVICE_NAME_V2_BUFFER_SIZE: usize = 96;
pub const NVML_DEVICE_UUID_V2_BUFFER_SIZE: usize = 96;
pub const NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE: usize = 32;
pub const NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE: usize = 16;
pub const NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE: usize = 80;
/// The sentinel for an unknown amount of memory of a process.
pub const NVML_VALUE_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// The sentinel for the id of a GPU or compute instance if MIG is off.
pub const NVML_INSTANCE_NONE: c_uint = c_uint::MAX;

macro_rules! returns {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub const $name: nvmlReturn_t = $code;)*

        /// Returns the text that `nvmlErrorString` returns for a code.
        pub fn error_string(code: nvmlReturn_t) -> &'static std::ffi::CStr {
            match code {
                $($code => $text,)*
                _ => c"Unknown error code",
            }
        }
    };
}

returns! {
    NVML_SUCCESS = 0, c"Success";
    NVML_ERROR_UNINITIALIZED = 1, c"Uninitialized";
    NVML_ERROR_INVALID_ARGUMENT = 2, c"Invalid Argument";
    NVML_ERROR_NOT_SUPPORTED = 3, c"Not Supported";
    NVML_ERROR_NO_PERMISSION = 4, c"Insufficient Permissions";
    NVML_ERROR_ALREADY_INITIALIZED = 5, c"Already Initialized";
    NVML_ERROR_NOT_FOUND = 6, c"Not Found";
    NVML_ERROR_INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    NVML_ERROR_INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    NVML_ERROR_DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    NVML_ERROR_TIMEOUT = 10, c"Timeout";
    NVML_ERROR_IRQ_ISSUE = 11, c"Interrupt Request Issue";
    NVML_ERROR_LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    NVML_ERROR_FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    NVML_ERROR_CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    NVML_ERROR_GPU_IS_LOST = 15, c"GPU is lost";
    NVML_ERROR_RESET_REQUIRED = 16, c"GPU requires reset";
    NVML_ERROR_OPERATING_SYSTEM = 17, c"Blocked by the operating system";
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    NVML_ERROR_IN_USE = 19, c"In use by another client";
    NVML_ERROR_MEMORY = 20, c"Insufficient Memory";
    NVML_ERROR_NO_DATA = 21, c"No data";
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22, c"vGPU with ECC is not supported";
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23, c"Insufficient resources";
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24, c"Requested frequency is not supported";
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    NVML_ERROR_DEPRECATED = 26, c"Deprecated";
    NVML_ERROR_NOT_READY = 27, c"System is not ready";
    NVML_ERROR_GPU_NOT_FOUND = 28, c"No GPUs found";
    NVML_ERROR_INVALID_STATE = 29, c"Invalid state";
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30, c"Reset type is not supported";
    NVML_ERROR_UNKNOWN = 999, c"Unknown Error";
}

pub type nvmlTemperatureSensors_t = c_uint;
pub const NVML_TEMPERATURE_GPU: nvmlTemperatureSensors_t = 0;

pub type nvmlClockType_t = c_uint;
pub const NVML_CLOCK_GRAPHICS: nvmlClockType_t = 0;
pub const NVML_CLOCK_SM: nvmlClockType_t = 1;
pub const NVML_CLOCK_MEM: nvmlClockType_t = 2;
pub const NVML_CLOCK_VIDEO: nvmlClockType_t = 3;

pub type nvmlComputeMode_t = c_uint;
pub const NVML_COMPUTEMODE_DEFAULT: nvmlComputeMode_t = 0;
pub const NVML_COMPUTEMODE_PROHIBITED: nvmlComputeMode_t = 2;
pub const NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: nvmlComputeMode_t = 3;

pub type nvmlPstates_t = c_uint;
pub const NVML_PSTATE_0: nvmlPstates_t = 0;
pub const NVML_PSTATE_UNKNOWN: nvmlPstates_t = 32;

pub type nvmlEnableState_t = c_uint;
pub const NVML_FEATURE_DISABLED: nvmlEnableState_t = 0;
pub const NVML_FEATURE_ENABLED: nvmlEnableState_t = 1;

pub type nvmlBrandType_t = c_uint;
pub const NVML_BRAND_UNKNOWN: nvmlBrandType_t = 0;
pub const NVML_BRAND_TESLA: nvmlBrandType_t = 2;
pub const NVML_BRAND_NVIDIA: nvmlBrandType_t = 14;

/// Returns the `version` word of a versioned structure: the structure's size, with the version in the top byte.
pub const fn struct_version<T>(version: u32) -> c_uint {
    size_of::<T>() as u32 | version << 24
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlMemory_t {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlMemory_v2_t {
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlBAR1Memory_t {
    pub bar1Total: c_ulonglong,
    pub bar1Free: c_ulonglong,
    pub bar1Used: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlUtilization_t {
    pub gpu: c_uint,
    pub memory: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct nvmlPciInfo_t {
    pub busIdLegacy: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub pciDeviceId: c_uint,
    pub pciSubSystemId: c_uint,
    pub busId: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct nvmlPciInfoExt_v1_t {
    pub version: c_uint,
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub pciDeviceId: c_uint,
    pub pciSubSystemId: c_uint,
    pub baseClass: c_uint,
    pub subClass: c_uint,
    pub busId: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE],
}

/// The result of the unversioned `nvmlDeviceGet*RunningProcesses`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlProcessInfo_v1_t {
    pub pid: c_uint,
    pub usedGpuMemory: c_ulonglong,
}

/// The result of `_v2` and `_v3` of `nvmlDeviceGet*RunningProcesses`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlProcessInfo_v2_t {
    pub pid: c_uint,
    pub usedGpuMemory: c_ulonglong,
    pub gpuInstanceId: c_uint,
    pub computeInstanceId: c_uint,
}

pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_t;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlProcessUtilizationSample_t {
    pub pid: c_uint,
    pub timeStamp: c_ulonglong,
    pub smUtil: c_uint,
    pub memUtil: c_uint,
    pub encUtil: c_uint,
    pub decUtil: c_uint,
}

/// The input and output of `nvmlDeviceGetTemperatureV`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlTemperature_v1_t {
    pub version: c_uint,
    pub sensorType: nvmlTemperatureSensors_t,
    pub temperature: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlDeviceAttributes_t {
    pub multiprocessorCount: c_uint,
    pub sharedCopyEngineCount: c_uint,
    pub sharedDecoderCount: c_uint,
    pub sharedEncoderCount: c_uint,
    pub sharedJpegCount: c_uint,
    pub sharedOfaCount: c_uint,
    pub gpuInstanceSliceCount: c_uint,
    pub computeInstanceSliceCount: c_uint,
    pub memorySizeMB: c_ulonglong,
}

/// One result of `nvmlDeviceGetFieldValues`. The value is a C union of 8 bytes; `valueType` selects its member.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlFieldValue_t {
    pub fieldId: c_uint,
    pub scopeId: c_uint,
    pub timestamp: i64,
    pub latencyUsec: i64,
    pub valueType: c_uint,
    pub nvmlReturn: nvmlReturn_t,
    pub value: u64,
}
