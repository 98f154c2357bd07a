//! Fields of NVIDIA's manual that this program cannot read from NVML. Their value is always `[N/A]`.
//!
//! Names and units are those that NVIDIA's program prints. `tests/compiled_programs/nvidia_smi_fields.txt` names their
//! source.

use crate::fields::Subject;

/// Lists of fields with the same unit: the unit, then the fields, separated by spaces. Alternative names of a field
/// follow `|`.
type Names = &'static [(&'static str, &'static str)];

const GPU: Names = &[
    (
        "",
        "accounting.buffer_size accounting.mode addressing_mode c2c.mode \
         clocks_event_reasons.supported|clocks_throttle_reasons.supported dramEncryption.mode.current \
         dramEncryption.mode.pending driver_model.current driver_model.pending encoder.stats.averageFps \
         encoder.stats.averageLatency encoder.stats.sessionCount fabric.cliqueId fabric.clusterUuid \
         fabric.health.access_timeout_recovery fabric.health.bandwidth fabric.health.incorrect_configuration \
         fabric.health.partition_assigned fabric.health.route_recovery_in_progress fabric.health.route_unhealthy \
         fabric.health.summary fabric.state fabric.status gom.current|gpu_operation_mode.current \
         gom.pending|gpu_operation_mode.pending gpu_recovery_action gsp.mode.current gsp.mode.default hostname \
         inforom.checksum_validation inforom.ecc inforom.img|inforom.image inforom.oem inforom.pwr|inforom.power \
         kmd_version pcie.link.gen.hostmax platform.chassis_serial_number platform.gpu_fabric_guid platform.host_id \
         platform.module_id platform.peer_type platform.slot_number platform.tray_index \
         power_smoothing.active_profile power_smoothing.admin_override.primary_floor_act_window_multiplier \
         power_smoothing.admin_override.primary_floor_tar_window_multiplier \
         power_smoothing.curr_profile.primary_floor_act_window_multiplier \
         power_smoothing.curr_profile.primary_floor_tar_window_multiplier \
         power_smoothing.delayed_power_smoothing_supported power_smoothing.enabled power_smoothing.imm_ramp_down \
         power_smoothing.num_preset_profiles power_smoothing.priv_level power_smoothing.soc_power_smoothing_enabled \
         reset_status.drain_and_reset_recommended reset_status.reset_required \
         retired_pages.double_bit.count|retired_pages.dbe retired_pages.pending \
         retired_pages.single_bit_ecc.count|retired_pages.sbe temperature.gpu.tlimit temperature.memory \
         vgpu_device_capability.fractional_multiVgpu vgpu_device_capability.heterogeneous_timeSlice_profile \
         vgpu_device_capability.heterogeneous_timeSlice_sizes vgpu_device_capability.homogeneous_placements \
         vgpu_device_capability.mig_timeSlicing vgpu_device_capability.mig_timeSlicing_mode \
         vgpu_driver_capability.heterogenous_multivGPU",
    ),
    (
        "%",
        "edpp_multiplier power_smoothing.admin_override.percent_tmp_floor \
         power_smoothing.curr_profile.percent_tmp_floor power_smoothing.hw_lifetime_remaining_percent \
         power_smoothing.max_percent_tmp_floor power_smoothing.min_percent_tmp_floor utilization.jpeg utilization.ofa",
    ),
    ("MiB", "protected_memory.free protected_memory.total protected_memory.used"),
    (
        "W",
        "gpu.base.current gpu.base.default gpu.base.max gpu.base.min gpu.base.requested \
         module.enforced.power.limit|module.power.current_limit module.power.default_limit module.power.draw.average \
         module.power.draw.instant module.power.limit|module.power.requested_limit module.power.max_limit \
         module.power.min_limit power.draw.average|gpu.power.draw.average power.draw.instant|gpu.power.draw.instant \
         power_smoothing.admin_override.primary_floor_act_offset power_smoothing.admin_override.secondary_power_floor \
         power_smoothing.curr_profile.primary_floor_act_offset power_smoothing.curr_profile.secondary_power_floor \
         power_smoothing.min_primary_floor_activation_offset power_smoothing.min_primary_floor_activation_point \
         power_smoothing.primary_power_floor power_smoothing.secondary_power_floor power_smoothing.tmp_ceil \
         power_smoothing.tmp_floor",
    ),
    (
        "W/s",
        "power_smoothing.admin_override.ramp_down_rate power_smoothing.admin_override.ramp_up_rate \
         power_smoothing.curr_profile.ramp_down_rate power_smoothing.curr_profile.ramp_up_rate",
    ),
    (
        "ms",
        "power_smoothing.admin_override.ramp_down_hysteresis power_smoothing.curr_profile.ramp_down_hysteresis \
         power_smoothing.window_multiplier",
    ),
    (
        "us",
        "clocks_event_reasons_counters.hw_power_brake_slowdown clocks_event_reasons_counters.hw_thermal_slowdown \
         clocks_event_reasons_counters.sw_power_cap clocks_event_reasons_counters.sw_thermal_slowdown \
         clocks_event_reasons_counters.sync_boost",
    ),
    ("seconds", "bbx.time_run"),
];

/// ECC error counters by memory type. This program reads only the totals from NVML.
const ECC: Names = &[(
    "",
    "ecc.errors.corrected.aggregate.cbu ecc.errors.corrected.aggregate.device_memory \
     ecc.errors.corrected.aggregate.dram ecc.errors.corrected.aggregate.l1_cache \
     ecc.errors.corrected.aggregate.l2_cache ecc.errors.corrected.aggregate.register_file \
     ecc.errors.corrected.aggregate.sram ecc.errors.corrected.aggregate.texture_memory \
     ecc.errors.corrected.volatile.cbu ecc.errors.corrected.volatile.device_memory ecc.errors.corrected.volatile.dram \
     ecc.errors.corrected.volatile.l1_cache ecc.errors.corrected.volatile.l2_cache \
     ecc.errors.corrected.volatile.register_file ecc.errors.corrected.volatile.sram \
     ecc.errors.corrected.volatile.texture_memory ecc.errors.uncorrected.aggregate.cbu \
     ecc.errors.uncorrected.aggregate.device_memory ecc.errors.uncorrected.aggregate.dram \
     ecc.errors.uncorrected.aggregate.l1_cache ecc.errors.uncorrected.aggregate.l2_cache \
     ecc.errors.uncorrected.aggregate.register_file ecc.errors.uncorrected.aggregate.sram \
     ecc.errors.uncorrected.aggregate.sram.l2 ecc.errors.uncorrected.aggregate.sram.mcu \
     ecc.errors.uncorrected.aggregate.sram.other ecc.errors.uncorrected.aggregate.sram.parity \
     ecc.errors.uncorrected.aggregate.sram.pcie ecc.errors.uncorrected.aggregate.sram.secded \
     ecc.errors.uncorrected.aggregate.sram.sm ecc.errors.uncorrected.aggregate.sram.thresholdExceeded \
     ecc.errors.uncorrected.aggregate.texture_memory ecc.errors.uncorrected.volatile.cbu \
     ecc.errors.uncorrected.volatile.device_memory ecc.errors.uncorrected.volatile.dram \
     ecc.errors.uncorrected.volatile.l1_cache ecc.errors.uncorrected.volatile.l2_cache \
     ecc.errors.uncorrected.volatile.register_file ecc.errors.uncorrected.volatile.sram \
     ecc.errors.uncorrected.volatile.sram.parity ecc.errors.uncorrected.volatile.sram.secded \
     ecc.errors.uncorrected.volatile.texture_memory",
)];

const REMAPPED_ROWS: Names = &[(
    "",
    "remapped_rows.correctable|remapped_rows.sbe remapped_rows.correctable_inactive remapped_rows.failure \
     remapped_rows.histogram.high remapped_rows.histogram.low remapped_rows.histogram.max \
     remapped_rows.histogram.none remapped_rows.histogram.partial remapped_rows.pending \
     remapped_rows.uncorrectable|remapped_rows.dbe remapped_rows.uncorrectable_inactive",
)];

const SUPPORTED_CLOCKS: Names = &[("MHz", "memory|mem graphics|gr")];

const ACCOUNTED_APPS: Names = &[
    ("", "vgpu_instance pid"),
    ("%", "gpu_utilization|gpu_util mem_utilization|mem_util"),
    ("MiB", "max_memory_usage"),
    ("ms", "time"),
];

const RETIRED_PAGES: Names = &[("", "retired_pages.address retired_pages.timestamp")];

/// Returns the unit and the names of each field without a value.
pub fn without_value(subject: Subject) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let lists: &[Names] = match subject {
        Subject::Gpu => &[GPU, ECC, REMAPPED_ROWS],
        Subject::SupportedClocks => &[SUPPORTED_CLOCKS],
        Subject::ComputeApps => &[],
        Subject::AccountedApps => &[ACCOUNTED_APPS],
        Subject::RetiredPages => &[RETIRED_PAGES],
        Subject::RemappedRows => &[REMAPPED_ROWS],
    };
    let of_unit = |(unit, fields): &(&'static str, &'static str)| {
        let unit = *unit;
        fields.split(' ').map(move |names| (unit, names.split('|').collect()))
    };
    lists.iter().copied().flatten().flat_map(of_unit)
}
