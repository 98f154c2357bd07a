//! NVML, loaded at runtime. Each function signature has one wrapper. A wrapper returns `None` if the function is
//! missing or fails.

use driverapi::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, error_string, nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_v2_t, nvmlReturn_t, nvmlUtilization_t, struct_version,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Exit codes: the driver is not loaded, the library was not found.
const DRIVER_NOT_LOADED: u8 = 9;
const LIBRARY_NOT_FOUND: u8 = 12;

pub struct Library(*mut c_void);

#[derive(Clone, Copy)]
pub struct Device(nvmlDevice_t);

/// A device's PCI address and ids. The ids of a share are 0, because a share is not a vendor's product.
pub struct Pci {
    pub bus_id: String,
    pub device_id: c_uint,
    pub subsystem_id: c_uint,
}

macro_rules! call {
    ($library:expr, $name:expr, ($($type:ty),*), $($argument:expr),*) => {
        // SAFETY: the name belongs to a function of this signature, and pointers are to locals of the caller.
        $library.find($name).is_some_and(|address| unsafe {
            let function: unsafe extern "C" fn($($type),*) -> nvmlReturn_t = std::mem::transmute(address);
            function($($argument),*) == NVML_SUCCESS
        })
    };
}

/// Defines wrappers of functions that write one value for a device.
macro_rules! device_values {
    ($($method:ident = $name:literal -> $type:ty;)*) => {
        $(pub fn $method(&self, device: Device) -> Option<$type> {
            let mut value = <$type>::default();
            call!(self, $name, (nvmlDevice_t, *mut $type), device.0, &mut value).then_some(value)
        })*
    };
}

/// Defines wrappers of functions that write one number for a device and a kind (of clock or sensor).
macro_rules! device_numbers_by_kind {
    ($($method:ident = $name:literal;)*) => {
        $(pub fn $method(&self, device: Device, kind: c_uint) -> Option<c_uint> {
            let mut value = 0;
            call!(self, $name, (nvmlDevice_t, c_uint, *mut c_uint), device.0, kind, &mut value).then_some(value)
        })*
    };
}

/// Defines wrappers of functions that write two numbers for a device: current and pending, or major and minor.
macro_rules! device_pairs {
    ($($method:ident = $name:literal;)*) => {
        $(pub fn $method(&self, device: Device) -> Option<(c_uint, c_uint)> {
            let (mut first, mut second) = (0, 0);
            let types = (device.0, &raw mut first, &raw mut second);
            call!(self, $name, (nvmlDevice_t, *mut c_uint, *mut c_uint), types.0, types.1, types.2)
                .then_some((first, second))
        })*
    };
}

/// Defines wrappers of functions that write a string for a device.
macro_rules! device_texts {
    ($($method:ident = $name:literal;)*) => {
        $(pub fn $method(&self, device: Device) -> Option<String> {
            text(|buffer, length| {
                call!(self, $name, (nvmlDevice_t, *mut c_char, c_uint), device.0, buffer, length)
            })
        })*
    };
}

fn text(fill: impl FnOnce(*mut c_char, c_uint) -> bool) -> Option<String> {
    let mut buffer = [0u8; 96];
    // The last byte stays NUL: the function does not get it.
    let length = buffer.len() as c_uint - 1;
    fill(buffer.as_mut_ptr().cast(), length).then(|| until_nul(&buffer))
}

fn until_nul(bytes: &[u8]) -> String {
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

impl Library {
    /// Loads and initialises NVML. An error is a message and the exit code.
    pub fn load() -> Result<Self, (String, u8)> {
        // SAFETY: dlopen runs the library's initialisers, which NVML needs.
        let handle = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            let cause =
                "libnvidia-ml.so.1 cannot be loaded. Start the command with `remotegpu run`, or in a pod with a share.";
            return Err((cause.to_owned(), LIBRARY_NOT_FOUND));
        }
        let library = Self(handle);
        let Some(init) = library.find(c"nvmlInit_v2") else {
            return Err(("libnvidia-ml.so.1 has no nvmlInit_v2.".to_owned(), LIBRARY_NOT_FOUND));
        };
        // SAFETY: this is the function's signature.
        let code = unsafe {
            let init: unsafe extern "C" fn() -> nvmlReturn_t = std::mem::transmute(init);
            init()
        };
        if code == NVML_SUCCESS {
            return Ok(library);
        }
        Err((format!("NVML does not start: {}.", error_string(code).to_string_lossy()), DRIVER_NOT_LOADED))
    }

    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    pub fn driver_version(&self) -> Option<String> {
        text(|buffer, length| call!(self, c"nvmlSystemGetDriverVersion", (*mut c_char, c_uint), buffer, length))
    }

    pub fn cuda_version(&self) -> Option<c_int> {
        let mut version = 0;
        call!(self, c"nvmlSystemGetCudaDriverVersion_v2", (*mut c_int), &mut version).then_some(version)
    }

    pub fn devices(&self) -> Vec<Device> {
        let mut count = 0;
        if !call!(self, c"nvmlDeviceGetCount_v2", (*mut c_uint), &mut count) {
            return Vec::new();
        }
        let device = |index| {
            let mut device = std::ptr::null_mut();
            let found = call!(self, c"nvmlDeviceGetHandleByIndex_v2", (c_uint, *mut nvmlDevice_t), index, &mut device);
            found.then_some(Device(device))
        };
        (0..count).filter_map(device).collect()
    }

    device_texts! {
        name = c"nvmlDeviceGetName";
        uuid = c"nvmlDeviceGetUUID";
        serial = c"nvmlDeviceGetSerial";
        vbios_version = c"nvmlDeviceGetVbiosVersion";
    }

    device_values! {
        fan_speed = c"nvmlDeviceGetFanSpeed" -> c_uint;
        performance_state = c"nvmlDeviceGetPerformanceState" -> c_uint;
        power_usage = c"nvmlDeviceGetPowerUsage" -> c_uint;
        power_limit = c"nvmlDeviceGetEnforcedPowerLimit" -> c_uint;
        persistence_mode = c"nvmlDeviceGetPersistenceMode" -> c_uint;
        display_active = c"nvmlDeviceGetDisplayActive" -> c_uint;
        display_mode = c"nvmlDeviceGetDisplayMode" -> c_uint;
        minor_number = c"nvmlDeviceGetMinorNumber" -> c_uint;
        architecture = c"nvmlDeviceGetArchitecture" -> c_uint;
        pcie_generation = c"nvmlDeviceGetCurrPcieLinkGeneration" -> c_uint;
        pcie_max_generation = c"nvmlDeviceGetMaxPcieLinkGeneration" -> c_uint;
        pcie_gpu_max_generation = c"nvmlDeviceGetGpuMaxPcieLinkGeneration" -> c_uint;
        pcie_width = c"nvmlDeviceGetCurrPcieLinkWidth" -> c_uint;
        pcie_max_width = c"nvmlDeviceGetMaxPcieLinkWidth" -> c_uint;
        requested_power_limit = c"nvmlDeviceGetPowerManagementLimit" -> c_uint;
        default_power_limit = c"nvmlDeviceGetPowerManagementDefaultLimit" -> c_uint;
        clock_reasons = c"nvmlDeviceGetCurrentClocksThrottleReasons" -> u64;
        bar1 = c"nvmlDeviceGetBAR1MemoryInfo" -> nvmlBAR1Memory_t;
        compute_mode = c"nvmlDeviceGetComputeMode" -> c_uint;
        utilization = c"nvmlDeviceGetUtilizationRates" -> nvmlUtilization_t;
        memory_v1 = c"nvmlDeviceGetMemoryInfo" -> nvmlMemory_t;
    }

    device_numbers_by_kind! {
        temperature = c"nvmlDeviceGetTemperature";
        clock = c"nvmlDeviceGetClockInfo";
        max_clock = c"nvmlDeviceGetMaxClockInfo";
        applications_clock = c"nvmlDeviceGetApplicationsClock";
        default_applications_clock = c"nvmlDeviceGetDefaultApplicationsClock";
    }

    device_pairs! {
        compute_capability = c"nvmlDeviceGetCudaComputeCapability";
        mig_mode = c"nvmlDeviceGetMigMode";
        ecc_mode = c"nvmlDeviceGetEccMode";
        encoder_utilization = c"nvmlDeviceGetEncoderUtilization";
        decoder_utilization = c"nvmlDeviceGetDecoderUtilization";
        power_limits = c"nvmlDeviceGetPowerManagementLimitConstraints";
    }

    /// Returns the number of ECC errors. `kind` is 0 for corrected and 1 for uncorrected errors; `counter` is 0 for
    /// those since the driver was loaded and 1 for all.
    pub fn ecc_errors(&self, device: Device, kind: c_uint, counter: c_uint) -> Option<u64> {
        let mut count = 0;
        let to = &raw mut count;
        let name = c"nvmlDeviceGetTotalEccErrors";
        call!(self, name, (nvmlDevice_t, c_uint, c_uint, *mut u64), device.0, kind, counter, to).then_some(count)
    }

    /// Returns the topology level (`NVML_TOPOLOGY_*`) of the nearest common ancestor of two devices.
    pub fn common_ancestor(&self, one: Device, other: Device) -> Option<c_uint> {
        let mut level = 0;
        let name = c"nvmlDeviceGetTopologyCommonAncestor";
        call!(self, name, (nvmlDevice_t, nvmlDevice_t, *mut c_uint), one.0, other.0, &mut level).then_some(level)
    }

    /// Returns memory sizes with the driver's reserved part separate, or `None` if the driver does not report it.
    pub fn memory_v2(&self, device: Device) -> Option<nvmlMemory_v2_t> {
        let mut memory = nvmlMemory_v2_t { version: struct_version::<nvmlMemory_v2_t>(2), ..Default::default() };
        call!(self, c"nvmlDeviceGetMemoryInfo_v2", (nvmlDevice_t, *mut nvmlMemory_v2_t), device.0, &mut memory)
            .then_some(memory)
    }

    pub fn pci(&self, device: Device) -> Option<Pci> {
        let mut info = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        call!(self, c"nvmlDeviceGetPciInfo_v3", (nvmlDevice_t, *mut nvmlPciInfo_t), device.0, &mut info).then(|| Pci {
            bus_id: until_nul(&info.busId.map(|byte| byte as u8)),
            device_id: info.pciDeviceId,
            subsystem_id: info.pciSubSystemId,
        })
    }

    pub fn compute_processes(&self, device: Device) -> Vec<nvmlProcessInfo_v2_t> {
        let Some(address) = self.find(c"nvmlDeviceGetComputeRunningProcesses_v3") else { return Vec::new() };
        let mut processes = vec![nvmlProcessInfo_v2_t::default(); 64];
        loop {
            let mut count = processes.len() as c_uint;
            // SAFETY: this is the function's signature, and the count is that of the buffer.
            let code = unsafe {
                let function: unsafe extern "C" fn(
                    nvmlDevice_t,
                    *mut c_uint,
                    *mut nvmlProcessInfo_v2_t,
                ) -> nvmlReturn_t = std::mem::transmute(address);
                function(device.0, &mut count, processes.as_mut_ptr())
            };
            match code {
                NVML_SUCCESS => {
                    processes.truncate(count as usize);
                    return processes;
                }
                // More processes may start before the next try, so the buffer grows by a factor.
                NVML_ERROR_INSUFFICIENT_SIZE if processes.len() < 1 << 16 => {
                    processes.resize(processes.len() * 4, nvmlProcessInfo_v2_t::default());
                }
                _ => return Vec::new(),
            }
        }
    }

    pub fn process_name(&self, process: c_uint) -> Option<String> {
        text(|buffer, length| {
            call!(self, c"nvmlSystemGetProcessName", (c_uint, *mut c_char, c_uint), process, buffer, length)
        })
    }
}
