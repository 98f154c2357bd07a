//! The fields of `--query-gpu` and the other queries, and the NVML calls that answer them.

use crate::clock;
use crate::manual;
use crate::snapshot::{Gpu, Process, System};
use std::fmt::Write;

type Read = fn(&System, &Gpu, &Line) -> Option<String>;

pub struct Field {
    /// All names of the field. The first one is printed in the header.
    pub names: &'static [&'static str],
    pub unit: &'static str,
    pub read: Read,
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn state(on: bool) -> Option<String> {
    text(if on { "Enabled" } else { "Disabled" })
}

fn watts(milliwatts: u32) -> Option<String> {
    Some(format!("{:.2}", f64::from(milliwatts) / 1000.0))
}

fn id(number: u32) -> Option<String> {
    Some(format!("{number:#010X}").replace("0X", "0x"))
}

/// Returns one number of the bus id as hexadecimal: "00000000:18:00.0" has the parts domain, bus and device.
fn bus_part(gpu: &Gpu, index: usize) -> Option<String> {
    let id = gpu.bus_id.as_ref()?;
    Some(format!("0x{}", id.split([':', '.']).nth(index)?))
}

/// Returns whether a clock reason is active, by its bit in `nvmlClocksEventReason*`.
fn reason(gpu: &Gpu, bit: u64) -> Option<String> {
    text(if gpu.clock_reasons? & bit != 0 { "Active" } else { "Not Active" })
}

macro_rules! fields {
    ($([$($name:literal),+], $unit:literal, $read:expr;)*) => {
        &[$(Field { names: &[$($name),+], unit: $unit, read: $read }),*]
    };
}

/// Builds the fields of a query with one line for each process, page or clock of a GPU. The first fields describe the
/// GPU.
macro_rules! fields_of_line {
    ($($fields:tt)*) => {
        fields! {
            ["timestamp"], "", |_, _, _| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
            ["gpu_name"], "", |_, gpu, _| gpu.name.clone();
            ["gpu_bus_id"], "", |_, gpu, _| gpu.bus_id.clone();
            ["gpu_serial"], "", |_, gpu, _| gpu.serial.clone();
            ["gpu_uuid"], "", |_, gpu, _| gpu.uuid.clone();
            $($fields)*
        }
    };
}

const GPU_FIELDS: &[Field] = fields! {
    ["timestamp"], "", |_, _, _| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
    ["driver_version"], "", |system, _, _| system.driver_version.clone();
    ["count"], "", |system, _, _| text(system.attached);
    ["name", "gpu_name"], "", |_, gpu, _| gpu.name.clone();
    ["serial", "gpu_serial"], "", |_, gpu, _| gpu.serial.clone();
    ["uuid", "gpu_uuid"], "", |_, gpu, _| gpu.uuid.clone();
    ["index"], "", |_, gpu, _| text(gpu.index);
    ["pci.bus_id", "gpu_bus_id"], "", |_, gpu, _| gpu.bus_id.clone();
    ["pci.domain"], "", |_, gpu, _| bus_part(gpu, 0);
    ["pci.bus"], "", |_, gpu, _| bus_part(gpu, 1);
    ["pci.device"], "", |_, gpu, _| bus_part(gpu, 2);
    ["pci.baseClass"], "", |_, gpu, _| gpu.bus_id.as_ref().and(text("0x03"));
    ["pci.subClass"], "", |_, gpu, _| gpu.bus_id.as_ref().and(text("0x02"));
    ["pci.device_id"], "", |_, gpu, _| id(gpu.pci_device_id?);
    ["pci.sub_device_id"], "", |_, gpu, _| id(gpu.pci_subsystem_id?);
    ["pcie.link.gen.current"], "", |_, gpu, _| text(gpu.pcie_generation?);
    ["pcie.link.gen.gpucurrent"], "", |_, gpu, _| text(gpu.pcie_generation?);
    ["pcie.link.gen.max"], "", |_, gpu, _| text(gpu.pcie_max_generation?);
    ["pcie.link.gen.gpumax"], "", |_, gpu, _| text(gpu.pcie_gpu_max_generation?);
    ["pcie.link.width.current"], "", |_, gpu, _| text(gpu.pcie_width?);
    ["pcie.link.width.max"], "", |_, gpu, _| text(gpu.pcie_max_width?);
    ["vbios_version"], "", |_, gpu, _| gpu.vbios_version.clone();
    ["compute_cap"], "", |_, gpu, _| gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    ["compute_mode"], "", |_, gpu, _| text(gpu.compute_mode_name()?);
    ["persistence_mode"], "", |_, gpu, _| state(gpu.persistence_mode?);
    ["display_mode"], "", |_, gpu, _| state(gpu.display_mode?);
    ["display_attached"], "", |_, gpu, _| text(if gpu.display_mode? { "Yes" } else { "No" });
    ["display_active"], "", |_, gpu, _| state(gpu.display_active?);
    ["mig.mode.current"], "", |_, gpu, _| state(gpu.mig_mode?);
    ["mig.mode.pending"], "", |_, gpu, _| state(gpu.mig_mode_pending?);
    ["ecc.mode.current"], "", |_, gpu, _| state(gpu.ecc_mode?);
    ["ecc.mode.pending"], "", |_, gpu, _| state(gpu.ecc_mode_pending?);
    ["ecc.errors.corrected.volatile.total"], "", |_, gpu, _| text(gpu.corrected_ecc_errors?);
    ["ecc.errors.corrected.aggregate.total"], "", |_, gpu, _| text(gpu.corrected_ecc_errors_ever?);
    ["ecc.errors.uncorrected.aggregate.total"], "", |_, gpu, _| text(gpu.ecc_errors_ever?);
    ["ecc.errors.uncorrected.volatile.total"], "", |_, gpu, _| text(gpu.ecc_errors?);
    ["fan.speed"], "%", |_, gpu, _| text(gpu.fan_speed?);
    ["pstate"], "", |_, gpu, _| gpu.performance_state.map(|state| format!("P{state}"));
    ["memory.total"], "MiB", |_, gpu, _| text(gpu.memory_total?);
    ["memory.reserved"], "MiB", |_, gpu, _| text(gpu.memory_reserved?);
    ["memory.used"], "MiB", |_, gpu, _| text(gpu.memory_used?);
    ["memory.free"], "MiB", |_, gpu, _| text(gpu.memory_free?);
    ["utilization.gpu"], "%", |_, gpu, _| text(gpu.utilization?);
    ["utilization.memory"], "%", |_, gpu, _| text(gpu.memory_utilization?);
    ["utilization.encoder"], "%", |_, gpu, _| text(gpu.encoder_utilization?);
    ["utilization.decoder"], "%", |_, gpu, _| text(gpu.decoder_utilization?);
    ["temperature.gpu"], "", |_, gpu, _| text(gpu.temperature?);
    ["power.management"], "", |_, gpu, _| gpu.power_limit.and(state(true));
    ["power.default_limit", "gpu.power.default_limit"], "W", |_, gpu, _| watts(gpu.default_power_limit?);
    ["power.min_limit", "gpu.power.min_limit"], "W", |_, gpu, _| watts(gpu.min_power_limit?);
    ["power.max_limit", "gpu.power.max_limit"], "W", |_, gpu, _| watts(gpu.max_power_limit?);
    ["power.draw"], "W", |_, gpu, _| watts(gpu.power_usage?);
    ["enforced.power.limit", "gpu.power.current_limit"], "W", |_, gpu, _| watts(gpu.power_limit?);
    ["power.limit", "gpu.power.requested_limit"], "W", |_, gpu, _| watts(gpu.requested_power_limit?);
    ["clocks.current.graphics", "clocks.gr"], "MHz", |_, gpu, _| text(gpu.clock_graphics?);
    ["clocks.current.sm", "clocks.sm"], "MHz", |_, gpu, _| text(gpu.clock_sm?);
    ["clocks.current.memory", "clocks.mem"], "MHz", |_, gpu, _| text(gpu.clock_memory?);
    ["clocks.current.video", "clocks.video"], "MHz", |_, gpu, _| text(gpu.clock_video?);
    ["clocks.applications.graphics", "clocks.applications.gr"], "MHz",
        |_, gpu, _| text(gpu.applications_clock_graphics?);
    ["clocks.applications.memory", "clocks.applications.mem"], "MHz",
        |_, gpu, _| text(gpu.applications_clock_memory?);
    ["clocks.default_applications.graphics", "clocks.default_applications.gr"], "MHz",
        |_, gpu, _| text(gpu.default_applications_clock_graphics?);
    ["clocks.default_applications.memory", "clocks.default_applications.mem"], "MHz",
        |_, gpu, _| text(gpu.default_applications_clock_memory?);
    ["clocks.max.graphics", "clocks.max.gr"], "MHz", |_, gpu, _| text(gpu.max_clock_graphics?);
    ["clocks.max.sm"], "MHz", |_, gpu, _| text(gpu.max_clock_sm?);
    ["clocks.max.memory", "clocks.max.mem"], "MHz", |_, gpu, _| text(gpu.max_clock_memory?);
    ["clocks_event_reasons.active", "clocks_throttle_reasons.active"], "",
        |_, gpu, _| Some(format!("0x{:016X}", gpu.clock_reasons?));
    ["clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle"], "",
        |_, gpu, _| reason(gpu, 0x1);
    ["clocks_event_reasons.applications_clocks_setting", "clocks_throttle_reasons.applications_clocks_setting"], "",
        |_, gpu, _| reason(gpu, 0x2);
    ["clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap"], "",
        |_, gpu, _| reason(gpu, 0x4);
    ["clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown"], "",
        |_, gpu, _| reason(gpu, 0x8);
    ["clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost"], "",
        |_, gpu, _| reason(gpu, 0x10);
    ["clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown"], "",
        |_, gpu, _| reason(gpu, 0x20);
    ["clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown"], "",
        |_, gpu, _| reason(gpu, 0x40);
    ["clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown"], "",
        |_, gpu, _| reason(gpu, 0x80);
};

const PROCESS_FIELDS: &[Field] = fields_of_line! {
    ["pid"], "", |_, _, line| text(line.process()?.id);
    ["process_name", "name"], "", |_, _, line| line.process()?.name.clone();
    ["used_gpu_memory", "used_memory"], "MiB", |_, _, line| text(line.process()?.memory?);
};

const PAGE_FIELDS: &[Field] = fields_of_line! {
    ["retired_pages.cause"], "", |_, _, line| if let Line::Retired(cause) = line { text(cause) } else { None };
};

const OTHER_FIELDS: &[Field] = fields_of_line! {};

/// The subject of one line of a query's output.
pub enum Line<'a> {
    /// The GPU, or a part of it for which NVML returns no values.
    Gpu,
    Process(&'a Process),
    /// Pages that were retired for the named reason.
    Retired(&'static str),
}

impl Line<'_> {
    fn process(&self) -> Option<&Process> {
        if let Self::Process(process) = self { Some(process) } else { None }
    }
}

/// The subject of a query. `--query-NAME` and `--help-query-NAME` contain its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    Gpu,
    SupportedClocks,
    ComputeApps,
    AccountedApps,
    RetiredPages,
    RemappedRows,
}

impl Subject {
    const ALL: [(&str, Self); 6] = [
        ("gpu", Self::Gpu),
        ("supported-clocks", Self::SupportedClocks),
        ("compute-apps", Self::ComputeApps),
        ("accounted-apps", Self::AccountedApps),
        ("retired-pages", Self::RetiredPages),
        ("remapped-rows", Self::RemappedRows),
    ];

    /// Returns the subject of an option that begins with `prefix`.
    pub fn of(option: &str, prefix: &str) -> Option<Self> {
        let name = option.strip_prefix(prefix)?;
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, subject)| *subject)
    }

    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::Gpu => GPU_FIELDS,
            Self::ComputeApps => PROCESS_FIELDS,
            Self::RetiredPages => PAGE_FIELDS,
            Self::SupportedClocks | Self::AccountedApps | Self::RemappedRows => OTHER_FIELDS,
        }
    }

    /// Returns the subjects of the lines to print. Accounting is off, so accounted processes have no lines.
    pub fn lines(self, gpu: &Gpu) -> Vec<Line<'_>> {
        match self {
            Self::Gpu | Self::SupportedClocks | Self::RemappedRows => vec![Line::Gpu],
            Self::ComputeApps => gpu.processes.iter().map(Line::Process).collect(),
            Self::AccountedApps => Vec::new(),
            Self::RetiredPages => vec![Line::Retired("Single Bit ECC"), Line::Retired("Double Bit ECC")],
        }
    }

    /// Returns the text of `--help-query-NAME` in NVIDIA's form. Exporters read the names of the fields from this text.
    pub fn help(self) -> String {
        let name = Self::ALL.iter().find(|(_, subject)| *subject == self).map_or("", |(name, _)| name);
        let mut text = format!("List of valid properties to query for the switch \"--query-{name}\":\n");
        let mut add = |names: &[&str], said: &str| {
            let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
            let _ = write!(text, "\n{}\n{said}\n", names.join(" or "));
        };
        self.fields().iter().for_each(|field| add(field.names, "What the driver tells."));
        manual::without_value(self).for_each(|(_, names)| add(&names, "Always [N/A]."));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_is_there_twice() {
        for (_, subject) in Subject::ALL {
            let (text, mut seen) = (subject.help(), HashSet::new());
            for name in text.lines().filter(|line| line.starts_with('"')).flat_map(|line| line.split(" or ")) {
                assert!(seen.insert(name), "{subject:?}: {name} is there twice");
            }
        }
    }
}
