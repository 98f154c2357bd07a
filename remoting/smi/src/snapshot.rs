//! Everything that is shown, read once.

use crate::library::{Device, Library};
use driverapi::nvml::{
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_CLOCK_SM, NVML_PSTATE_UNKNOWN, NVML_TEMPERATURE_GPU,
    NVML_VALUE_NOT_AVAILABLE,
};

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct System {
    pub driver_version: Option<String>,
    /// 13000 is 13.0.
    pub cuda_version: Option<u32>,
    pub gpus: Vec<Gpu>,
}

/// Sizes are in MiB, power in mW, clocks in MHz. `None` is what the driver does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    pub index: usize,
    pub name: Option<String>,
    pub uuid: Option<String>,
    pub serial: Option<String>,
    pub bus_id: Option<String>,
    pub vbios_version: Option<String>,
    pub compute_capability: Option<(u32, u32)>,
    pub memory_total: Option<u64>,
    pub memory_used: Option<u64>,
    pub memory_free: Option<u64>,
    pub memory_reserved: Option<u64>,
    pub utilization: Option<u32>,
    pub memory_utilization: Option<u32>,
    pub temperature: Option<u32>,
    pub fan_speed: Option<u32>,
    pub performance_state: Option<u32>,
    pub power_usage: Option<u32>,
    pub power_limit: Option<u32>,
    pub clock_graphics: Option<u32>,
    pub clock_sm: Option<u32>,
    pub clock_memory: Option<u32>,
    pub max_clock_sm: Option<u32>,
    pub max_clock_memory: Option<u32>,
    pub persistence_mode: Option<bool>,
    pub display_active: Option<bool>,
    pub compute_mode: Option<u32>,
    pub mig_mode: Option<bool>,
    pub ecc_mode: Option<bool>,
    pub ecc_errors: Option<u64>,
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    pub id: u32,
    pub name: Option<String>,
    pub memory: Option<u64>,
}

impl System {
    pub fn read(library: &Library) -> Self {
        let devices = library.devices();
        Self {
            driver_version: library.driver_version(),
            cuda_version: library.cuda_version().and_then(|version| u32::try_from(version).ok()),
            gpus: devices.into_iter().enumerate().map(|(index, device)| Gpu::read(library, index, device)).collect(),
        }
    }
}

impl Gpu {
    fn read(library: &Library, index: usize, device: Device) -> Self {
        let plain = library.memory_v1(device);
        let detailed = library.memory_v2(device);
        let memory = |from_detailed: fn(&driverapi::nvml::nvmlMemory_v2_t) -> u64, from_plain: Option<u64>| {
            detailed.as_ref().map(from_detailed).or(from_plain).map(|bytes| bytes / MIB)
        };
        let utilization = library.utilization(device);
        let enabled = |(current, _pending): (u32, u32)| current != 0;
        Self {
            index,
            name: library.name(device),
            uuid: library.uuid(device),
            serial: library.serial(device),
            bus_id: library.bus_id(device),
            vbios_version: library.vbios_version(device),
            compute_capability: library.compute_capability(device),
            memory_total: memory(|memory| memory.total, plain.map(|memory| memory.total)),
            memory_used: memory(|memory| memory.used, plain.map(|memory| memory.used)),
            memory_free: memory(|memory| memory.free, plain.map(|memory| memory.free)),
            memory_reserved: memory(|memory| memory.reserved, None),
            utilization: utilization.map(|rates| rates.gpu),
            memory_utilization: utilization.map(|rates| rates.memory),
            temperature: library.temperature(device, NVML_TEMPERATURE_GPU),
            fan_speed: library.fan_speed(device),
            performance_state: library.performance_state(device).filter(|&state| state != NVML_PSTATE_UNKNOWN),
            power_usage: library.power_usage(device),
            power_limit: library.power_limit(device),
            clock_graphics: library.clock(device, NVML_CLOCK_GRAPHICS),
            clock_sm: library.clock(device, NVML_CLOCK_SM),
            clock_memory: library.clock(device, NVML_CLOCK_MEM),
            max_clock_sm: library.max_clock(device, NVML_CLOCK_SM),
            max_clock_memory: library.max_clock(device, NVML_CLOCK_MEM),
            persistence_mode: library.persistence_mode(device).map(|mode| mode != 0),
            display_active: library.display_active(device).map(|active| active != 0),
            compute_mode: library.compute_mode(device),
            mig_mode: library.mig_mode(device).map(enabled),
            ecc_mode: library.ecc_mode(device).map(enabled),
            ecc_errors: library.volatile_ecc_errors(device),
            processes: library.compute_processes(device).iter().map(|info| Process::read(library, info)).collect(),
        }
    }

    /// Whether this is the GPU that index, UUID or bus id name.
    pub fn is(&self, wanted: &str) -> bool {
        let matches = |own: &Option<String>| own.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(wanted));
        wanted == self.index.to_string() || matches(&self.uuid) || matches(&self.bus_id)
    }

    pub fn compute_mode_name(&self) -> Option<&'static str> {
        Some(match self.compute_mode? {
            0 => "Default",
            2 => "Prohibited",
            3 => "Exclusive_Process",
            _ => "Unknown",
        })
    }
}

impl Process {
    /// The name is the driver's, else that of a process of this machine with that id.
    fn read(library: &Library, info: &driverapi::nvml::nvmlProcessInfo_v2_t) -> Self {
        let local = || std::fs::read_link(format!("/proc/{}/exe", info.pid)).ok();
        Self {
            id: info.pid,
            name: library.process_name(info.pid).or_else(|| Some(local()?.to_string_lossy().into_owned())),
            memory: (info.usedGpuMemory != NVML_VALUE_NOT_AVAILABLE).then_some(info.usedGpuMemory / MIB),
        }
    }
}
