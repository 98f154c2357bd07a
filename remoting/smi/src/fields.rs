//! The fields of `--query-gpu` and `--query-compute-apps`.

use crate::clock;
use crate::snapshot::{Gpu, Process, System};

type Read<Row> = fn(&System, &Gpu, &Row) -> Option<String>;

pub struct Field<Row: 'static> {
    /// The first name is the one in the header.
    pub names: &'static [&'static str],
    pub unit: &'static str,
    pub read: Read<Row>,
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

/// Parts of "00000000:18:00.0".
fn bus_part(gpu: &Gpu, index: usize) -> Option<String> {
    let id = gpu.bus_id.as_ref()?;
    Some(format!("0x{}", id.split([':', '.']).nth(index)?))
}

/// One of the reasons for a clock, by its bit in `nvmlClocksEventReason*`.
fn reason(gpu: &Gpu, bit: u64) -> Option<String> {
    text(if gpu.clock_reasons? & bit != 0 { "Active" } else { "Not Active" })
}

macro_rules! fields {
    ($row:ty: $([$($name:literal),+], $unit:literal, $read:expr;)*) => {
        &[$(Field::<$row> { names: &[$($name),+], unit: $unit, read: $read }),*]
    };
}

pub const GPU_FIELDS: &[Field<()>] = fields! { ():
    ["timestamp"], "", |_, _, ()| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
    ["driver_version"], "", |system, _, ()| system.driver_version.clone();
    ["count"], "", |system, _, ()| text(system.attached);
    ["name", "gpu_name"], "", |_, gpu, ()| gpu.name.clone();
    ["serial", "gpu_serial"], "", |_, gpu, ()| gpu.serial.clone();
    ["uuid", "gpu_uuid"], "", |_, gpu, ()| gpu.uuid.clone();
    ["index"], "", |_, gpu, ()| text(gpu.index);
    ["pci.bus_id", "gpu_bus_id"], "", |_, gpu, ()| gpu.bus_id.clone();
    ["pci.domain"], "", |_, gpu, ()| bus_part(gpu, 0);
    ["pci.bus"], "", |_, gpu, ()| bus_part(gpu, 1);
    ["pci.device"], "", |_, gpu, ()| bus_part(gpu, 2);
    ["pci.baseClass"], "", |_, gpu, ()| gpu.bus_id.as_ref().and(text("0x03"));
    ["pci.subClass"], "", |_, gpu, ()| gpu.bus_id.as_ref().and(text("0x02"));
    ["pci.device_id"], "", |_, gpu, ()| id(gpu.pci_device_id?);
    ["pci.sub_device_id"], "", |_, gpu, ()| id(gpu.pci_subsystem_id?);
    ["pcie.link.gen.current", "pcie.link.gen.gpucurrent"], "", |_, gpu, ()| text(gpu.pcie_generation?);
    ["pcie.link.gen.max"], "", |_, gpu, ()| text(gpu.pcie_max_generation?);
    ["pcie.link.gen.gpumax"], "", |_, gpu, ()| text(gpu.pcie_gpu_max_generation?);
    ["pcie.link.width.current"], "", |_, gpu, ()| text(gpu.pcie_width?);
    ["pcie.link.width.max"], "", |_, gpu, ()| text(gpu.pcie_max_width?);
    ["vbios_version"], "", |_, gpu, ()| gpu.vbios_version.clone();
    ["compute_cap"], "", |_, gpu, ()| gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    ["compute_mode"], "", |_, gpu, ()| text(gpu.compute_mode_name()?);
    ["persistence_mode"], "", |_, gpu, ()| state(gpu.persistence_mode?);
    ["display_mode", "display_attached"], "", |_, gpu, ()| state(gpu.display_mode?);
    ["display_active"], "", |_, gpu, ()| state(gpu.display_active?);
    ["mig.mode.current"], "", |_, gpu, ()| state(gpu.mig_mode?);
    ["mig.mode.pending"], "", |_, gpu, ()| state(gpu.mig_mode_pending?);
    ["ecc.mode.current"], "", |_, gpu, ()| state(gpu.ecc_mode?);
    ["ecc.mode.pending"], "", |_, gpu, ()| state(gpu.ecc_mode_pending?);
    ["ecc.errors.corrected.volatile.total"], "", |_, gpu, ()| text(gpu.corrected_ecc_errors?);
    ["ecc.errors.corrected.aggregate.total"], "", |_, gpu, ()| text(gpu.corrected_ecc_errors_ever?);
    ["ecc.errors.uncorrected.aggregate.total"], "", |_, gpu, ()| text(gpu.ecc_errors_ever?);
    ["ecc.errors.uncorrected.volatile.total"], "", |_, gpu, ()| text(gpu.ecc_errors?);
    ["fan.speed"], "%", |_, gpu, ()| text(gpu.fan_speed?);
    ["pstate"], "", |_, gpu, ()| gpu.performance_state.map(|state| format!("P{state}"));
    ["memory.total"], "MiB", |_, gpu, ()| text(gpu.memory_total?);
    ["memory.reserved"], "MiB", |_, gpu, ()| text(gpu.memory_reserved?);
    ["memory.used"], "MiB", |_, gpu, ()| text(gpu.memory_used?);
    ["memory.free"], "MiB", |_, gpu, ()| text(gpu.memory_free?);
    ["utilization.gpu"], "%", |_, gpu, ()| text(gpu.utilization?);
    ["utilization.memory"], "%", |_, gpu, ()| text(gpu.memory_utilization?);
    ["utilization.encoder"], "%", |_, gpu, ()| text(gpu.encoder_utilization?);
    ["utilization.decoder"], "%", |_, gpu, ()| text(gpu.decoder_utilization?);
    ["temperature.gpu"], "", |_, gpu, ()| text(gpu.temperature?);
    ["power.management"], "", |_, gpu, ()| gpu.power_limit.and(state(true));
    ["power.default_limit"], "W", |_, gpu, ()| watts(gpu.default_power_limit?);
    ["power.min_limit"], "W", |_, gpu, ()| watts(gpu.min_power_limit?);
    ["power.max_limit"], "W", |_, gpu, ()| watts(gpu.max_power_limit?);
    ["power.draw"], "W", |_, gpu, ()| watts(gpu.power_usage?);
    ["enforced.power.limit"], "W", |_, gpu, ()| watts(gpu.power_limit?);
    ["power.limit"], "W", |_, gpu, ()| watts(gpu.requested_power_limit?);
    ["clocks.current.graphics", "clocks.gr"], "MHz", |_, gpu, ()| text(gpu.clock_graphics?);
    ["clocks.current.sm", "clocks.sm"], "MHz", |_, gpu, ()| text(gpu.clock_sm?);
    ["clocks.current.memory", "clocks.mem"], "MHz", |_, gpu, ()| text(gpu.clock_memory?);
    ["clocks.current.video", "clocks.video"], "MHz", |_, gpu, ()| text(gpu.clock_video?);
    ["clocks.applications.graphics", "clocks.applications.gr"], "MHz",
        |_, gpu, ()| text(gpu.applications_clock_graphics?);
    ["clocks.applications.memory", "clocks.applications.mem"], "MHz",
        |_, gpu, ()| text(gpu.applications_clock_memory?);
    ["clocks.default_applications.graphics", "clocks.default_applications.gr"], "MHz",
        |_, gpu, ()| text(gpu.default_applications_clock_graphics?);
    ["clocks.default_applications.memory", "clocks.default_applications.mem"], "MHz",
        |_, gpu, ()| text(gpu.default_applications_clock_memory?);
    ["clocks.max.graphics", "clocks.max.gr"], "MHz", |_, gpu, ()| text(gpu.max_clock_graphics?);
    ["clocks.max.sm"], "MHz", |_, gpu, ()| text(gpu.max_clock_sm?);
    ["clocks.max.memory", "clocks.max.mem"], "MHz", |_, gpu, ()| text(gpu.max_clock_memory?);
    ["clocks_event_reasons.active", "clocks_throttle_reasons.active"], "",
        |_, gpu, ()| Some(format!("0x{:016X}", gpu.clock_reasons?));
    ["clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle"], "",
        |_, gpu, ()| reason(gpu, 0x1);
    ["clocks_event_reasons.applications_clocks_setting", "clocks_throttle_reasons.applications_clocks_setting"], "",
        |_, gpu, ()| reason(gpu, 0x2);
    ["clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap"], "",
        |_, gpu, ()| reason(gpu, 0x4);
    ["clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown"], "",
        |_, gpu, ()| reason(gpu, 0x8);
    ["clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost"], "",
        |_, gpu, ()| reason(gpu, 0x10);
    ["clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown"], "",
        |_, gpu, ()| reason(gpu, 0x20);
    ["clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown"], "",
        |_, gpu, ()| reason(gpu, 0x40);
    ["clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown"], "",
        |_, gpu, ()| reason(gpu, 0x80);
};

pub const PROCESS_FIELDS: &[Field<Process>] = fields! { Process:
    ["timestamp"], "", |_, _, _| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
    ["gpu_name"], "", |_, gpu, _| gpu.name.clone();
    ["gpu_bus_id"], "", |_, gpu, _| gpu.bus_id.clone();
    ["gpu_serial"], "", |_, gpu, _| gpu.serial.clone();
    ["gpu_uuid"], "", |_, gpu, _| gpu.uuid.clone();
    ["pid"], "", |_, _, process| text(process.id);
    ["process_name", "name"], "", |_, _, process| process.name.clone();
    ["used_gpu_memory", "used_memory"], "MiB", |_, _, process| text(process.memory?);
};

/// Fields of NVIDIA's manual that no NVML function used here returns, by unit: the answer is always `[N/A]`.
const WITHOUT_VALUE: &[(&str, &str)] = &[
    (
        "",
        "accounting.buffer_size accounting.mode addressing_mode c2c.mode clocks_event_reasons.supported \
         clocks_throttle_reasons.supported dramEncryption.mode.current dramEncryption.mode.pending driver_model.current \
         driver_model.pending encoder.stats.averageFps encoder.stats.averageLatency encoder.stats.sessionCount \
         fabric.cliqueId fabric.clusterUuid fabric.health.bandwidth fabric.state fabric.status gom.current gom.pending \
         gpu_part_number gpu_recovery_action gsp.mode.current gsp.mode.default hostname inforom.checksum_validation \
         inforom.ecc inforom.image inforom.img inforom.oem inforom.power inforom.pwr pcie.link.gen.hostmax \
         platform.chassis_serial_number platform.gpu_fabric_guid platform.host_id platform.module_id platform.peer_type \
         platform.slot_number platform.tray_index remapped_rows.correctable remapped_rows.failure \
         remapped_rows.histogram.high remapped_rows.histogram.low remapped_rows.histogram.max \
         remapped_rows.histogram.none remapped_rows.histogram.partial remapped_rows.pending remapped_rows.uncorrectable \
         reset_status.drain_and_reset_recommended reset_status.reset_required retired_pages.dbe \
         retired_pages.double_bit.count retired_pages.pending retired_pages.sbe retired_pages.single_bit_ecc.count \
         temperature.gpu.tlimit temperature.memory vgpu_device_capability.fractional_multiVgpu \
         vgpu_device_capability.heterogeneous_timeSlice_profile vgpu_device_capability.heterogeneous_timeSlice_sizes \
         vgpu_device_capability.homogeneous_placements vgpu_device_capability.mig_timeslicing_mode \
         vgpu_device_capability.mig_timeslicing_supported vgpu_driver_capability.heterogenous_multivGPU",
    ),
    ("%", "utilization.jpeg utilization.ofa"),
    ("MiB", "protected_memory.free protected_memory.total protected_memory.used"),
    (
        "W",
        "module.enforced.power.limit module.power.default_limit module.power.draw.average module.power.draw.instant \
         module.power.limit module.power.max_limit module.power.min_limit power.draw.average power.draw.instant",
    ),
    (
        "us",
        "clocks_event_reasons_counters.hw_power_brake_slowdown clocks_event_reasons_counters.hw_thermal_slowdown \
         clocks_event_reasons_counters.sw_power_cap clocks_event_reasons_counters.sw_thermal_slowdown \
         clocks_event_reasons_counters.sync_boost",
    ),
];

/// Counters of ECC errors by the memory that they were in. NVML's sum is queried, these are not.
const ECC_KINDS: [&str; 4] =
    ["corrected.volatile", "corrected.aggregate", "uncorrected.volatile", "uncorrected.aggregate"];
const ECC_PLACES: &[&str] =
    &["device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram"];
const SRAM_PLACES: &[&str] =
    &["threshold_exceeded", "sram.l2", "sram.sm", "sram.microcontroller", "sram.pcie", "sram.other"];

/// Returns the unit of a field that is known and has no value.
pub fn without_value(name: &str) -> Option<&'static str> {
    let listed = WITHOUT_VALUE.iter().find(|(_, names)| names.split(' ').any(|known| known == name));
    listed.map(|(unit, _)| *unit).or_else(|| is_ecc_counter(name).then_some(""))
}

fn is_ecc_counter(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("ecc.errors.") else { return false };
    ECC_KINDS.iter().any(|kind| {
        let place = rest.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
        place.is_some_and(|place| {
            ECC_PLACES.contains(&place) || (*kind == "uncorrected.aggregate" && SRAM_PLACES.contains(&place))
        })
    })
}

/// The text of `--help-query-gpu`: every field, the ones with a value first.
pub fn help() -> String {
    let mut text = "Fields of --query-gpu that have a value here:\n".to_owned();
    let mut add = |name: &str| {
        text += name;
        text.push('\n');
    };
    GPU_FIELDS.iter().for_each(|field| add(&field.names.join(" or ")));
    add("\nFields that are answered [N/A]:");
    WITHOUT_VALUE.iter().flat_map(|(_, names)| names.split(' ')).for_each(&mut add);
    for kind in ECC_KINDS {
        ECC_PLACES.iter().for_each(|place| add(&format!("ecc.errors.{kind}.{place}")));
    }
    SRAM_PLACES.iter().for_each(|place| add(&format!("ecc.errors.uncorrected.aggregate.{place}")));
    add("\nFields of --query-compute-apps:");
    PROCESS_FIELDS.iter().for_each(|field| add(&field.names.join(" or ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_is_there_twice() {
        let mut seen = HashSet::new();
        let valued = GPU_FIELDS.iter().flat_map(|field| field.names).copied();
        let others = WITHOUT_VALUE.iter().flat_map(|(_, names)| names.split(' '));
        for name in valued.chain(others) {
            assert!(seen.insert(name), "{name} is there twice");
        }
    }

    #[test]
    fn names_in_the_help_are_answered() {
        let text = help();
        let (gpus, _) = text.split_once("\nFields of --query-compute-apps").unwrap();
        for name in gpus.lines().filter(|line| !line.is_empty() && !line.ends_with(':')) {
            let name = name.split(' ').next().unwrap();
            assert!(GPU_FIELDS.iter().any(|field| field.names[0] == name) || without_value(name).is_some(), "{name}");
        }
        assert_eq!(without_value("colour"), None);
        assert_eq!(without_value("ecc.errors.corrected.volatile.colour"), None);
    }
}
