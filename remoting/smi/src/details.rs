//! The report of `-q`: all known values of each GPU as an indented list, or with `-x` as the XML that exporters read.
//! Both forms are written from one tree, so they always have the same content.

use crate::clock;
use crate::snapshot::{Gpu, Process, System};
use std::fmt::Write;

/// The sections that `-d` accepts. A section for which `of_gpu` has no values is empty.
pub const SECTIONS: [&str; 21] = [
    "MEMORY",
    "UTILIZATION",
    "ECC",
    "TEMPERATURE",
    "POWER",
    "CLOCK",
    "COMPUTE",
    "PIDS",
    "PERFORMANCE",
    "SUPPORTED_CLOCKS",
    "PAGE_RETIREMENT",
    "ACCOUNTING",
    "ENCODER_STATS",
    "SUPPORTED_GPU_TARGET_TEMP",
    "VOLTAGE",
    "FBC_STATS",
    "ROW_REMAPPER",
    "RESET_STATUS",
    "GSP_FIRMWARE_VERSION",
    "POWER_SMOOTHING",
    "POWER_PROFILES",
];

/// The column of the colon in the list.
const WIDTH: usize = 42;

enum Node {
    Value { label: &'static str, tag: &'static str, text: String },
    Group { label: &'static str, tag: &'static str, nodes: Vec<Node> },
}

fn value(label: &'static str, tag: &'static str, text: Option<impl ToString>) -> Node {
    Node::Value { label, tag, text: text.map_or_else(|| "N/A".to_owned(), |text| text.to_string()) }
}

fn group(label: &'static str, tag: &'static str, nodes: Vec<Node>) -> Node {
    Node::Group { label, tag, nodes }
}

fn with_unit(value: Option<impl ToString>, unit: &str) -> Option<String> {
    value.map(|value| format!("{} {unit}", value.to_string()))
}

fn state(on: Option<bool>) -> Option<&'static str> {
    on.map(|on| if on { "Enabled" } else { "Disabled" })
}

fn watts(milliwatts: Option<u32>) -> Option<String> {
    milliwatts.map(|power| format!("{:.2} W", f64::from(power) / 1000.0))
}

/// A node and the section that contains it. Nodes without a section are shown only if no section is chosen.
type Part = (Option<&'static str>, Node);

fn of_gpu(gpu: &Gpu) -> Vec<Part> {
    let none = None::<&str>;
    let megahertz = |clock| with_unit(clock, "MHz");
    let mebibytes = |size| with_unit(size, "MiB");
    let percent = |value| with_unit(value, "%");
    let difference = |all: Option<u64>, part: Option<u64>| Some(all?.saturating_sub(part?));
    let general = |node| (None, node);
    let mut parts = vec![
        general(value("Product Name", "product_name", gpu.name.as_ref())),
        general(value("Product Architecture", "product_architecture", gpu.architecture_name())),
        general(value("Display Mode", "display_mode", state(gpu.display_mode))),
        general(value("Display Active", "display_active", state(gpu.display_active))),
        general(value("Persistence Mode", "persistence_mode", state(gpu.persistence_mode))),
        general(group(
            "MIG Mode",
            "mig_mode",
            vec![
                value("Current", "current_mig", state(gpu.mig_mode)),
                value("Pending", "pending_mig", state(gpu.mig_mode_pending)),
            ],
        )),
        general(value("Serial Number", "serial", gpu.serial.as_ref())),
        general(value("GPU UUID", "uuid", gpu.uuid.as_ref())),
        general(value("Minor Number", "minor_number", gpu.minor_number)),
        general(value("VBIOS Version", "vbios_version", gpu.vbios_version.as_ref())),
        general(pci(gpu)),
        general(value("Fan Speed", "fan_speed", percent(gpu.fan_speed))),
    ];
    let performance = gpu.performance_state.map(|state| format!("P{state}"));
    parts.push((Some("PERFORMANCE"), value("Performance State", "performance_state", performance)));
    parts.push((Some("PERFORMANCE"), clock_reasons(gpu)));
    parts.extend([
        (
            Some("MEMORY"),
            group(
                "FB Memory Usage",
                "fb_memory_usage",
                vec![
                    value("Total", "total", mebibytes(gpu.memory_total)),
                    value("Reserved", "reserved", mebibytes(gpu.memory_reserved)),
                    value("Used", "used", mebibytes(gpu.memory_used)),
                    value("Free", "free", mebibytes(gpu.memory_free)),
                ],
            ),
        ),
        (
            Some("MEMORY"),
            group(
                "BAR1 Memory Usage",
                "bar1_memory_usage",
                vec![
                    value("Total", "total", mebibytes(gpu.bar1_total)),
                    value("Used", "used", mebibytes(gpu.bar1_used)),
                    value("Free", "free", mebibytes(difference(gpu.bar1_total, gpu.bar1_used))),
                ],
            ),
        ),
        (Some("COMPUTE"), value("Compute Mode", "compute_mode", gpu.compute_mode_name())),
        (
            Some("UTILIZATION"),
            group(
                "Utilization",
                "utilization",
                vec![
                    value("GPU", "gpu_util", percent(gpu.utilization)),
                    value("Memory", "memory_util", percent(gpu.memory_utilization)),
                    value("Encoder", "encoder_util", percent(gpu.encoder_utilization)),
                    value("Decoder", "decoder_util", percent(gpu.decoder_utilization)),
                    value("JPEG", "jpeg_util", none),
                    value("OFA", "ofa_util", none),
                ],
            ),
        ),
        (
            Some("ENCODER_STATS"),
            group(
                "Encoder Stats",
                "encoder_stats",
                vec![
                    value("Active Sessions", "session_count", none),
                    value("Average FPS", "average_fps", none),
                    value("Average Latency", "average_latency", none),
                ],
            ),
        ),
        (
            Some("ECC"),
            group(
                "ECC Mode",
                "ecc_mode",
                vec![
                    value("Current", "current_ecc", state(gpu.ecc_mode)),
                    value("Pending", "pending_ecc", state(gpu.ecc_mode_pending)),
                ],
            ),
        ),
        (
            Some("ECC"),
            group(
                "ECC Errors",
                "ecc_errors",
                vec![
                    group(
                        "Volatile",
                        "volatile",
                        vec![
                            value("Correctable", "correctable_total", gpu.corrected_ecc_errors),
                            value("Uncorrectable", "uncorrectable_total", gpu.ecc_errors),
                        ],
                    ),
                    group(
                        "Aggregate",
                        "aggregate",
                        vec![
                            value("Correctable", "correctable_total", gpu.corrected_ecc_errors_ever),
                            value("Uncorrectable", "uncorrectable_total", gpu.ecc_errors_ever),
                        ],
                    ),
                ],
            ),
        ),
        (
            Some("PAGE_RETIREMENT"),
            group(
                "Retired Pages",
                "retired_pages",
                vec![
                    value("Single Bit ECC", "multiple_single_bit_retirement_count", none),
                    value("Double Bit ECC", "double_bit_retirement_count", none),
                    value("Pending Page Blacklist", "pending_retirement", none),
                ],
            ),
        ),
        (
            Some("TEMPERATURE"),
            group(
                "Temperature",
                "temperature",
                vec![
                    value("GPU Current Temp", "gpu_temp", with_unit(gpu.temperature, "C")),
                    value("Memory Current Temp", "memory_temp", none),
                ],
            ),
        ),
        (
            Some("POWER"),
            group(
                "GPU Power Readings",
                "gpu_power_readings",
                vec![
                    value("Power State", "power_state", gpu.performance_state.map(|state| format!("P{state}"))),
                    value("Power Draw", "power_draw", watts(gpu.power_usage)),
                    value("Current Power Limit", "current_power_limit", watts(gpu.power_limit)),
                    value("Requested Power Limit", "requested_power_limit", watts(gpu.requested_power_limit)),
                    value("Default Power Limit", "default_power_limit", watts(gpu.default_power_limit)),
                    value("Min Power Limit", "min_power_limit", watts(gpu.min_power_limit)),
                    value("Max Power Limit", "max_power_limit", watts(gpu.max_power_limit)),
                ],
            ),
        ),
        (
            Some("CLOCK"),
            group(
                "Clocks",
                "clocks",
                vec![
                    value("Graphics", "graphics_clock", megahertz(gpu.clock_graphics)),
                    value("SM", "sm_clock", megahertz(gpu.clock_sm)),
                    value("Memory", "mem_clock", megahertz(gpu.clock_memory)),
                    value("Video", "video_clock", megahertz(gpu.clock_video)),
                ],
            ),
        ),
        (
            Some("CLOCK"),
            group(
                "Applications Clocks",
                "applications_clocks",
                vec![
                    value("Graphics", "graphics_clock", megahertz(gpu.applications_clock_graphics)),
                    value("Memory", "mem_clock", megahertz(gpu.applications_clock_memory)),
                ],
            ),
        ),
        (
            Some("CLOCK"),
            group(
                "Max Clocks",
                "max_clocks",
                vec![
                    value("Graphics", "graphics_clock", megahertz(gpu.max_clock_graphics)),
                    value("SM", "sm_clock", megahertz(gpu.max_clock_sm)),
                    value("Memory", "mem_clock", megahertz(gpu.max_clock_memory)),
                    value("Video", "video_clock", megahertz(gpu.max_clock_video)),
                ],
            ),
        ),
        (Some("PIDS"), group("Processes", "processes", gpu.processes.iter().map(process).collect())),
    ]);
    parts
}

fn pci(gpu: &Gpu) -> Node {
    let number = |part: usize| Some(format!("0x{}", gpu.bus_id.as_ref()?.split([':', '.']).nth(part)?));
    let id = |id: Option<u32>| id.map(|id| format!("0x{id:08X}"));
    let lanes = |width: Option<u32>| width.map(|width| format!("{width}x"));
    group(
        "PCI",
        "pci",
        vec![
            value("Bus", "pci_bus", number(1)),
            value("Device", "pci_device", number(2)),
            value("Domain", "pci_domain", number(0)),
            value("Device Id", "pci_device_id", id(gpu.pci_device_id)),
            value("Bus Id", "pci_bus_id", gpu.bus_id.as_ref()),
            value("Sub System Id", "pci_sub_system_id", id(gpu.pci_subsystem_id)),
            group(
                "GPU Link Info",
                "pci_gpu_link_info",
                vec![
                    group(
                        "PCIe Generation",
                        "pcie_gen",
                        vec![
                            value("Max", "max_link_gen", gpu.pcie_max_generation),
                            value("Current", "current_link_gen", gpu.pcie_generation),
                        ],
                    ),
                    group(
                        "Link Width",
                        "link_widths",
                        vec![
                            value("Max", "max_link_width", lanes(gpu.pcie_max_width)),
                            value("Current", "current_link_width", lanes(gpu.pcie_width)),
                        ],
                    ),
                ],
            ),
            value("Tx Throughput", "tx_util", None::<&str>),
            value("Rx Throughput", "rx_util", None::<&str>),
        ],
    )
}

fn clock_reasons(gpu: &Gpu) -> Node {
    let reason = |label, tag, bit: u64| {
        value(label, tag, gpu.clock_reasons.map(|reasons| if reasons & bit != 0 { "Active" } else { "Not Active" }))
    };
    group(
        "Clocks Event Reasons",
        "clocks_event_reasons",
        vec![
            reason("Idle", "clocks_event_reason_gpu_idle", 0x1),
            reason("Applications Clocks Setting", "clocks_event_reason_applications_clocks_setting", 0x2),
            reason("SW Power Cap", "clocks_event_reason_sw_power_cap", 0x4),
            reason("HW Slowdown", "clocks_event_reason_hw_slowdown", 0x8),
            reason("Sync Boost", "clocks_event_reason_sync_boost", 0x10),
            reason("SW Thermal Slowdown", "clocks_event_reason_sw_thermal_slowdown", 0x20),
            reason("HW Thermal Slowdown", "clocks_event_reason_hw_thermal_slowdown", 0x40),
            reason("HW Power Brake Slowdown", "clocks_event_reason_hw_power_brake_slowdown", 0x80),
        ],
    )
}

/// Returns the values of one process. In the list they are one level deeper than the process id; in XML they are its
/// siblings.
fn process(process: &Process) -> Node {
    let none = None::<&str>;
    group(
        "",
        "process_info",
        vec![
            value("GPU instance ID", "gpu_instance_id", none),
            value("Compute instance ID", "compute_instance_id", none),
            value("Process ID", "pid", Some(process.id)),
            value("    Type", "type", Some("C")),
            value("    Name", "process_name", process.name.as_ref()),
            value("    Used GPU Memory", "used_memory", with_unit(process.memory, "MiB")),
        ],
    )
}

fn chosen(gpu: &Gpu, sections: &[&str]) -> Vec<Node> {
    let wanted = |section: Option<&str>| sections.is_empty() || section.is_some_and(|name| sections.contains(&name));
    of_gpu(gpu).into_iter().filter(|(section, _)| wanted(*section)).map(|(_, node)| node).collect()
}

fn cuda_version(system: &System) -> Option<String> {
    system.cuda_version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
}

fn head(system: &System) -> [Node; 4] {
    [
        value("Timestamp", "timestamp", Some(clock::now(c"%a %b %e %H:%M:%S %Y"))),
        value("Driver Version", "driver_version", system.driver_version.as_ref()),
        value("CUDA Version", "cuda_version", cuda_version(system)),
        value("Attached GPUs", "attached_gpus", Some(system.attached)),
    ]
}

fn bus_id(gpu: &Gpu) -> &str {
    gpu.bus_id.as_deref().unwrap_or("N/A")
}

/// Returns the indented list of the given sections, or of all sections if `sections` is empty.
pub fn text(system: &System, sections: &[&str]) -> String {
    let mut out = "\n==============NVSMI LOG==============\n\n".to_owned();
    head(system).iter().for_each(|node| write_text(&mut out, node, 0));
    for gpu in &system.gpus {
        let _ = writeln!(out, "\nGPU {}", bus_id(gpu));
        chosen(gpu, sections).iter().for_each(|node| write_text(&mut out, node, 1));
    }
    out
}

fn write_text(out: &mut String, node: &Node, depth: usize) {
    let indented = |label: &str| format!("{}{label}", "    ".repeat(depth));
    let _ = match node {
        Node::Value { label, text, .. } => writeln!(out, "{:<WIDTH$}: {text}", indented(label)),
        Node::Group { label, nodes, .. } if nodes.is_empty() => writeln!(out, "{:<WIDTH$}: None", indented(label)),
        Node::Group { label: "", nodes, .. } => return nodes.iter().for_each(|node| write_text(out, node, depth)),
        Node::Group { label, nodes, .. } => {
            let _ = writeln!(out, "{}", indented(label));
            return nodes.iter().for_each(|node| write_text(out, node, depth + 1));
        }
    };
}

/// Returns the XML of `-x`, in the format of NVIDIA's program since release 530.
pub fn xml(system: &System, sections: &[&str]) -> String {
    let mut out = "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n".to_owned();
    out += "<nvidia_smi_log>\n";
    head(system).iter().for_each(|node| write_xml(&mut out, node, 1));
    for gpu in &system.gpus {
        let _ = writeln!(out, "\t<gpu id=\"{}\">", escaped(bus_id(gpu)));
        chosen(gpu, sections).iter().for_each(|node| write_xml(&mut out, node, 2));
        out += "\t</gpu>\n\n";
    }
    out + "</nvidia_smi_log>\n"
}

fn write_xml(out: &mut String, node: &Node, depth: usize) {
    let indent = "\t".repeat(depth);
    match node {
        Node::Value { tag, text, .. } => {
            let _ = writeln!(out, "{indent}<{tag}>{}</{tag}>", escaped(text));
        }
        Node::Group { tag, nodes, .. } => {
            let _ = writeln!(out, "{indent}<{tag}>");
            nodes.iter().for_each(|node| write_xml(out, node, depth + 1));
            let _ = writeln!(out, "{indent}</{tag}>");
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> System {
        let process = Process { id: 77, name: Some("a<b".to_owned()), memory: Some(300) };
        let gpu = Gpu {
            name: Some("Soft GPU".to_owned()),
            bus_id: Some("00000000:18:00.0".to_owned()),
            memory_total: Some(2048),
            memory_used: Some(300),
            processes: vec![process],
            ..Gpu::default()
        };
        System { attached: 1, cuda_version: Some(13_000), gpus: vec![gpu], ..System::default() }
    }

    #[test]
    fn sections_are_chosen() {
        let text = text(&system(), &["MEMORY"]);
        assert!(text.contains("\nGPU 00000000:18:00.0\n    FB Memory Usage\n"), "{text}");
        assert!(text.contains("\n        Total                             : 2048 MiB\n"), "{text}");
        assert!(!text.contains("Product Name") && !text.contains("Processes"));
    }

    #[test]
    fn every_group_of_the_xml_is_closed_and_text_is_escaped() {
        let xml = xml(&system(), &[]);
        assert!(xml.contains("<process_name>a&lt;b</process_name>") && xml.contains("<used_memory>300 MiB<"), "{xml}");
        let tags = |mark: &str| xml.matches(mark).count();
        assert_eq!(tags("<") - 2, 2 * tags("</"), "{xml}");
    }

    #[test]
    fn no_process_is_said() {
        let idle = System { gpus: vec![Gpu::default()], ..System::default() };
        assert!(text(&idle, &["PIDS"]).contains("    Processes                             : None\n"));
        assert!(xml(&idle, &["PIDS"]).contains("\t\t<processes>\n\t\t</processes>\n"));
    }
}
