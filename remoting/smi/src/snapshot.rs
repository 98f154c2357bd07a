//! A snapshot of all values that this program prints, read from NVML once.

use crate::library::{Device, Library};
use driverapi::nvml::{
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_CLOCK_SM, NVML_CLOCK_VIDEO, NVML_PSTATE_UNKNOWN, NVML_TEMPERATURE_GPU,
    NVML_VALUE_NOT_AVAILABLE,
};

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct System {
    pub driver_version: Option<String>,
    /// 1000 * major + 10 * minor: 13000 is 13.0.
    pub cuda_version: Option<u32>,
    /// The number of all attached GPUs, including those that `-i` leaves out.
    pub attached: usize,
    pub gpus: Vec<Gpu>,
}

/// The values of one GPU. Sizes are in MiB, power in mW, clocks in MHz. A value is `None` if the driver does not report
/// it.
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
    pub ecc_errors_ever: Option<u64>,
    pub corrected_ecc_errors: Option<u64>,
    pub corrected_ecc_errors_ever: Option<u64>,
    pub ecc_mode_pending: Option<bool>,
    pub mig_mode_pending: Option<bool>,
    pub display_mode: Option<bool>,
    pub minor_number: Option<u32>,
    pub architecture: Option<u32>,
    pub pci_device_id: Option<u32>,
    pub pci_subsystem_id: Option<u32>,
    pub pcie_generation: Option<u32>,
    pub pcie_max_generation: Option<u32>,
    pub pcie_gpu_max_generation: Option<u32>,
    pub pcie_width: Option<u32>,
    pub pcie_max_width: Option<u32>,
    pub requested_power_limit: Option<u32>,
    pub default_power_limit: Option<u32>,
    pub min_power_limit: Option<u32>,
    pub max_power_limit: Option<u32>,
    pub encoder_utilization: Option<u32>,
    pub decoder_utilization: Option<u32>,
    pub bar1_total: Option<u64>,
    pub bar1_used: Option<u64>,
    pub clock_video: Option<u32>,
    pub max_clock_graphics: Option<u32>,
    pub max_clock_video: Option<u32>,
    pub applications_clock_graphics: Option<u32>,
    pub applications_clock_memory: Option<u32>,
    pub default_applications_clock_graphics: Option<u32>,
    pub default_applications_clock_memory: Option<u32>,
    /// Bits of `nvmlClocksEventReason*`.
    pub clock_reasons: Option<u64>,
    /// The topology level (`NVML_TOPOLOGY_*`) of the common ancestor with each GPU, by index.
    pub ancestors: Vec<Option<u32>>,
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
            attached: devices.len(),
            gpus: (0..devices.len()).map(|index| Gpu::read(library, index, &devices)).collect(),
        }
    }
}

impl Gpu {
    fn read(library: &Library, index: usize, devices: &[Device]) -> Self {
        let device = devices[index];
        let plain = library.memory_v1(device);
        let detailed = library.memory_v2(device);
        let memory = |from_detailed: fn(&driverapi::nvml::nvmlMemory_v2_t) -> u64, from_plain: Option<u64>| {
            detailed.as_ref().map(from_detailed).or(from_plain).map(|bytes| bytes / MIB)
        };
        let utilization = library.utilization(device);
        let (mig, ecc) = (library.mig_mode(device), library.ecc_mode(device));
        let (now, pending) = (|mode: (u32, u32)| mode.0 != 0, |mode: (u32, u32)| mode.1 != 0);
        let pci = library.pci(device);
        let bar1 = library.bar1(device);
        let power_limits = library.power_limits(device);
        Self {
            index,
            name: library.name(device),
            uuid: library.uuid(device),
            serial: library.serial(device),
            bus_id: pci.as_ref().map(|pci| pci.bus_id.clone()),
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
            mig_mode: mig.map(now),
            mig_mode_pending: mig.map(pending),
            ecc_mode: ecc.map(now),
            ecc_mode_pending: ecc.map(pending),
            ecc_errors: library.ecc_errors(device, 1, 0),
            ecc_errors_ever: library.ecc_errors(device, 1, 1),
            corrected_ecc_errors: library.ecc_errors(device, 0, 0),
            corrected_ecc_errors_ever: library.ecc_errors(device, 0, 1),
            display_mode: library.display_mode(device).map(|mode| mode != 0),
            minor_number: library.minor_number(device),
            architecture: library.architecture(device),
            pci_device_id: pci.as_ref().map(|pci| pci.device_id).filter(|&id| id != 0),
            pci_subsystem_id: pci.as_ref().map(|pci| pci.subsystem_id).filter(|&id| id != 0),
            pcie_generation: library.pcie_generation(device),
            pcie_max_generation: library.pcie_max_generation(device),
            pcie_gpu_max_generation: library.pcie_gpu_max_generation(device),
            pcie_width: library.pcie_width(device),
            pcie_max_width: library.pcie_max_width(device),
            requested_power_limit: library.requested_power_limit(device),
            default_power_limit: library.default_power_limit(device),
            min_power_limit: power_limits.map(|limits| limits.0),
            max_power_limit: power_limits.map(|limits| limits.1),
            encoder_utilization: library.encoder_utilization(device).map(|(percent, _period)| percent),
            decoder_utilization: library.decoder_utilization(device).map(|(percent, _period)| percent),
            bar1_total: bar1.map(|bar1| bar1.bar1Total / MIB),
            bar1_used: bar1.map(|bar1| bar1.bar1Used / MIB),
            clock_video: library.clock(device, NVML_CLOCK_VIDEO),
            max_clock_graphics: library.max_clock(device, NVML_CLOCK_GRAPHICS),
            max_clock_video: library.max_clock(device, NVML_CLOCK_VIDEO),
            applications_clock_graphics: library.applications_clock(device, NVML_CLOCK_GRAPHICS),
            applications_clock_memory: library.applications_clock(device, NVML_CLOCK_MEM),
            default_applications_clock_graphics: library.default_applications_clock(device, NVML_CLOCK_GRAPHICS),
            default_applications_clock_memory: library.default_applications_clock(device, NVML_CLOCK_MEM),
            clock_reasons: library.clock_reasons(device),
            ancestors: devices.iter().map(|&other| library.common_ancestor(device, other)).collect(),
            processes: library.compute_processes(device).iter().map(|info| Process::read(library, info)).collect(),
        }
    }

    /// Whether `wanted`, a list of indices, UUIDs and bus ids, names this GPU.
    pub fn is(&self, wanted: &str) -> bool {
        let is = |own: &Option<String>, one: &str| own.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(one));
        let names = |one: &str| one == self.index.to_string() || is(&self.uuid, one) || is(&self.bus_id, one);
        wanted.split(',').any(|one| names(one.trim()))
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

impl Gpu {
    /// Returns the name of the GPU generation, as NVIDIA's program prints it.
    pub fn architecture_name(&self) -> Option<&'static str> {
        let names = ["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"];
        names.get(usize::try_from(self.architecture?.checked_sub(2)?).ok()?).copied()
    }
}

impl Process {
    /// Reads one process. If the driver has no name for the process, the executable of the local process with this id
    /// is used.
    fn read(library: &Library, info: &driverapi::nvml::nvmlProcessInfo_v2_t) -> Self {
        let local = || std::fs::read_link(format!("/proc/{}/exe", info.pid)).ok();
        Self {
            id: info.pid,
            name: library.process_name(info.pid).or_else(|| Some(local()?.to_string_lossy().into_owned())),
            memory: (info.usedGpuMemory != NVML_VALUE_NOT_AVAILABLE).then_some(info.usedGpuMemory / MIB),
        }
    }
}
