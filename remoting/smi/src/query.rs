//! `--query-gpu` and `--query-compute-apps`: chosen fields as comma-separated lines.

use crate::clock;
use crate::snapshot::{Gpu, Process, System};
use std::fmt::Write;

/// What scripts see where there is no value.
const NOT_AVAILABLE: &str = "[N/A]";

type Read<Row> = fn(&System, &Gpu, &Row) -> Option<String>;

struct Field<Row: 'static> {
    /// The first name is the one in the header.
    names: &'static [&'static str],
    unit: &'static str,
    read: Read<Row>,
}

#[derive(Debug, PartialEq)]
pub struct Query {
    /// Positions in the table of fields.
    fields: Vec<usize>,
    header: bool,
    units: bool,
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

/// Parts of "00000000:18:00.0".
fn bus_part(gpu: &Gpu, index: usize) -> Option<String> {
    let id = gpu.bus_id.as_ref()?;
    Some(format!("0x{}", id.split([':', '.']).nth(index)?))
}

macro_rules! fields {
    ($row:ty: $([$($name:literal),+], $unit:literal, $read:expr;)*) => {
        &[$(Field::<$row> { names: &[$($name),+], unit: $unit, read: $read }),*]
    };
}

const GPU_FIELDS: &[Field<()>] = fields! { ():
    ["timestamp"], "", |_, _, ()| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
    ["driver_version"], "", |system, _, ()| system.driver_version.clone();
    ["count"], "", |system, _, ()| text(system.gpus.len());
    ["name", "gpu_name"], "", |_, gpu, ()| gpu.name.clone();
    ["serial", "gpu_serial"], "", |_, gpu, ()| gpu.serial.clone();
    ["uuid", "gpu_uuid"], "", |_, gpu, ()| gpu.uuid.clone();
    ["index"], "", |_, gpu, ()| text(gpu.index);
    ["pci.bus_id", "gpu_bus_id"], "", |_, gpu, ()| gpu.bus_id.clone();
    ["pci.domain"], "", |_, gpu, ()| bus_part(gpu, 0);
    ["pci.bus"], "", |_, gpu, ()| bus_part(gpu, 1);
    ["pci.device"], "", |_, gpu, ()| bus_part(gpu, 2);
    ["vbios_version"], "", |_, gpu, ()| gpu.vbios_version.clone();
    ["compute_cap"], "", |_, gpu, ()| gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    ["compute_mode"], "", |_, gpu, ()| text(gpu.compute_mode_name()?);
    ["persistence_mode"], "", |_, gpu, ()| state(gpu.persistence_mode?);
    ["display_active"], "", |_, gpu, ()| state(gpu.display_active?);
    ["mig.mode.current"], "", |_, gpu, ()| state(gpu.mig_mode?);
    ["ecc.mode.current"], "", |_, gpu, ()| state(gpu.ecc_mode?);
    ["ecc.errors.uncorrected.volatile.total"], "", |_, gpu, ()| text(gpu.ecc_errors?);
    ["fan.speed"], "%", |_, gpu, ()| text(gpu.fan_speed?);
    ["pstate"], "", |_, gpu, ()| gpu.performance_state.map(|state| format!("P{state}"));
    ["memory.total"], "MiB", |_, gpu, ()| text(gpu.memory_total?);
    ["memory.reserved"], "MiB", |_, gpu, ()| text(gpu.memory_reserved?);
    ["memory.used"], "MiB", |_, gpu, ()| text(gpu.memory_used?);
    ["memory.free"], "MiB", |_, gpu, ()| text(gpu.memory_free?);
    ["utilization.gpu"], "%", |_, gpu, ()| text(gpu.utilization?);
    ["utilization.memory"], "%", |_, gpu, ()| text(gpu.memory_utilization?);
    ["temperature.gpu"], "", |_, gpu, ()| text(gpu.temperature?);
    ["power.draw"], "W", |_, gpu, ()| watts(gpu.power_usage?);
    ["enforced.power.limit"], "W", |_, gpu, ()| watts(gpu.power_limit?);
    ["power.limit"], "W", |_, gpu, ()| watts(gpu.power_limit?);
    ["clocks.current.graphics", "clocks.gr"], "MHz", |_, gpu, ()| text(gpu.clock_graphics?);
    ["clocks.current.sm", "clocks.sm"], "MHz", |_, gpu, ()| text(gpu.clock_sm?);
    ["clocks.current.memory", "clocks.mem"], "MHz", |_, gpu, ()| text(gpu.clock_memory?);
    ["clocks.max.sm"], "MHz", |_, gpu, ()| text(gpu.max_clock_sm?);
    ["clocks.max.memory", "clocks.max.mem"], "MHz", |_, gpu, ()| text(gpu.max_clock_memory?);
};

const PROCESS_FIELDS: &[Field<Process>] = fields! { Process:
    ["timestamp"], "", |_, _, _| Some(clock::now(c"%Y/%m/%d %H:%M:%S.000"));
    ["gpu_name"], "", |_, gpu, _| gpu.name.clone();
    ["gpu_bus_id"], "", |_, gpu, _| gpu.bus_id.clone();
    ["gpu_serial"], "", |_, gpu, _| gpu.serial.clone();
    ["gpu_uuid"], "", |_, gpu, _| gpu.uuid.clone();
    ["pid"], "", |_, _, process| text(process.id);
    ["process_name", "name"], "", |_, _, process| process.name.clone();
    ["used_gpu_memory", "used_memory"], "MiB", |_, _, process| text(process.memory?);
};

pub const FIELD_HELP: &str = "\
Fields of --query-gpu:
timestamp driver_version count name serial uuid index pci.bus_id pci.domain pci.bus pci.device vbios_version compute_cap
compute_mode persistence_mode display_active mig.mode.current ecc.mode.current ecc.errors.uncorrected.volatile.total
fan.speed pstate memory.total memory.reserved memory.used memory.free utilization.gpu utilization.memory
temperature.gpu power.draw power.limit enforced.power.limit clocks.current.graphics clocks.current.sm
clocks.current.memory clocks.max.sm clocks.max.memory
Fields of --query-compute-apps:
timestamp gpu_name gpu_bus_id gpu_serial gpu_uuid pid process_name used_gpu_memory
";

impl Query {
    pub fn of_gpus(names: &str) -> Result<Self, String> {
        Self::new(names, GPU_FIELDS)
    }

    pub fn of_processes(names: &str) -> Result<Self, String> {
        Self::new(names, PROCESS_FIELDS)
    }

    fn new<Row>(names: &str, table: &[Field<Row>]) -> Result<Self, String> {
        let position = |name: &str| {
            let found = table.iter().position(|field| field.names.contains(&name.trim()));
            found.ok_or_else(|| format!("Field {name:?} is not known; nvidia-smi --help-query-gpu lists them."))
        };
        let fields = names.split(',').map(position).collect::<Result<_, _>>()?;
        Ok(Self { fields, header: true, units: true })
    }

    pub fn set_format(&mut self, format: &str) -> Result<(), String> {
        let mut csv = false;
        for word in format.split(',') {
            match word.trim() {
                "csv" => csv = true,
                "noheader" => self.header = false,
                "nounits" => self.units = false,
                other => return Err(format!("Format {other:?} is not known: csv[,noheader][,nounits].")),
            }
        }
        if csv { Ok(()) } else { Err("The format is csv[,noheader][,nounits].".to_owned()) }
    }

    pub fn gpus(&self, system: &System) -> String {
        self.lines(GPU_FIELDS, system, system.gpus.iter().map(|gpu| (gpu, &())))
    }

    pub fn processes(&self, system: &System) -> String {
        let rows = system.gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |process| (gpu, process)));
        self.lines(PROCESS_FIELDS, system, rows)
    }

    fn lines<'a, Row: 'a>(
        &self,
        table: &[Field<Row>],
        system: &System,
        rows: impl Iterator<Item = (&'a Gpu, &'a Row)>,
    ) -> String {
        let fields: Vec<_> = self.fields.iter().map(|&position| &table[position]).collect();
        let mut out = String::new();
        if self.header {
            let names = fields.iter().map(|field| match field.unit {
                "" => field.names[0].to_owned(),
                unit => format!("{} [{unit}]", field.names[0]),
            });
            let _ = writeln!(out, "{}", names.collect::<Vec<_>>().join(", "));
        }
        for (gpu, row) in rows {
            let values = fields.iter().map(|field| match ((field.read)(system, gpu, row), field.unit) {
                (None, _) => NOT_AVAILABLE.to_owned(),
                (Some(value), unit) if self.units && !unit.is_empty() => format!("{value} {unit}"),
                (Some(value), _) => value,
            });
            let _ = writeln!(out, "{}", values.collect::<Vec<_>>().join(", "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> System {
        let process = Process { id: 77, name: Some("python3".to_owned()), memory: Some(300) };
        let gpu = Gpu {
            name: Some("Soft GPU".to_owned()),
            bus_id: Some("00000000:18:00.0".to_owned()),
            compute_capability: Some((12, 1)),
            memory_total: Some(2048),
            memory_used: Some(300),
            power_usage: Some(70_500),
            processes: vec![process],
            ..Gpu::default()
        };
        System { driver_version: Some("580.1".to_owned()), cuda_version: Some(13_000), gpus: vec![gpu] }
    }

    fn gpus(fields: &str, format: &str) -> String {
        let mut query = Query::of_gpus(fields).unwrap();
        query.set_format(format).unwrap();
        query.gpus(&system())
    }

    #[test]
    fn lines_with_and_without_header_and_units() {
        let fields = "gpu_name, memory.total,utilization.gpu,power.draw,compute_cap,pci.bus";
        assert_eq!(
            gpus(fields, "csv"),
            "name, memory.total [MiB], utilization.gpu [%], power.draw [W], compute_cap, pci.bus\n\
             Soft GPU, 2048 MiB, [N/A], 70.50 W, 12.1, 0x18\n"
        );
        assert_eq!(gpus(fields, "csv,noheader,nounits"), "Soft GPU, 2048, [N/A], 70.50, 12.1, 0x18\n");
    }

    #[test]
    fn processes_of_all_gpus() {
        let query = Query::of_processes("pid,name,used_memory").unwrap();
        assert_eq!(query.processes(&system()), "pid, process_name, used_gpu_memory [MiB]\n77, python3, 300 MiB\n");
    }

    #[test]
    fn help_names_every_field() {
        let known = |name: &str| FIELD_HELP.split_whitespace().any(|word| word == name);
        assert!(GPU_FIELDS.iter().all(|field| known(field.names[0])));
        assert!(PROCESS_FIELDS.iter().all(|field| known(field.names[0]) || field.names[0] == "process_name"));
    }
}
