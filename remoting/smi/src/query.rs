//! `--query-gpu` and the other queries: chosen fields as comma-separated lines.

use crate::fields::Subject;
use crate::manual;
use crate::snapshot::System;
use std::fmt::Write;

/// The value that is printed if NVML returns none.
const NOT_AVAILABLE: &str = "[N/A]";

#[derive(Debug, PartialEq)]
enum Column {
    /// An index in the table of fields.
    Field(usize),
    /// A field of the manual that never has a value.
    Empty { name: &'static str, unit: &'static str },
}

#[derive(Debug, PartialEq)]
pub struct Query {
    subject: Subject,
    columns: Vec<Column>,
    header: bool,
    units: bool,
}

impl Query {
    pub fn new(subject: Subject, names: &str) -> Result<Self, String> {
        let column = |name: &str| {
            let name = name.trim();
            let told = subject.fields().iter().position(|field| field.names.contains(&name)).map(Column::Field);
            let empty = || {
                let (unit, names) = manual::without_value(subject).find(|(_, names)| names.contains(&name))?;
                Some(Column::Empty { name: names[0], unit })
            };
            told.or_else(empty).ok_or_else(|| format!("Field \"{name}\" is not a valid field to query.\n"))
        };
        // NVIDIA's program accepts a comma at the end.
        let names = names.strip_suffix(',').unwrap_or(names);
        let columns = names.split(',').map(column).collect::<Result<_, _>>()?;
        Ok(Self { subject, columns, header: true, units: true })
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

    pub fn lines(&self, system: &System) -> String {
        let table = self.subject.fields();
        let mut out = String::new();
        if self.header {
            let names = self.columns.iter().map(|column| {
                let (name, unit) = match column {
                    Column::Field(place) => (table[*place].names[0], table[*place].unit),
                    Column::Empty { name, unit } => (*name, *unit),
                };
                if unit.is_empty() { name.to_owned() } else { format!("{name} [{unit}]") }
            });
            let _ = writeln!(out, "{}", names.collect::<Vec<_>>().join(", "));
        }
        let lines = |gpu| self.subject.lines(gpu).into_iter().map(move |line| (gpu, line));
        for (gpu, line) in system.gpus.iter().flat_map(lines) {
            let values = self.columns.iter().map(|column| {
                let Column::Field(place) = column else { return NOT_AVAILABLE.to_owned() };
                let field = &table[*place];
                match ((field.read)(system, gpu, &line), field.unit) {
                    (None, _) => NOT_AVAILABLE.to_owned(),
                    (Some(value), unit) if self.units && !unit.is_empty() => format!("{value} {unit}"),
                    (Some(value), _) => value,
                }
            });
            let _ = writeln!(out, "{}", values.collect::<Vec<_>>().join(", "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Gpu, Process};

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
        System { driver_version: Some("580.1".to_owned()), cuda_version: Some(13_000), attached: 1, gpus: vec![gpu] }
    }

    fn gpus(fields: &str, format: &str) -> String {
        let mut query = Query::new(Subject::Gpu, fields).unwrap();
        query.set_format(format).unwrap();
        query.lines(&system())
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
        let query = Query::new(Subject::ComputeApps, "pid,name,used_memory").unwrap();
        assert_eq!(query.lines(&system()), "pid, process_name, used_gpu_memory [MiB]\n77, python3, 300 MiB\n");
    }

    #[test]
    fn a_field_of_the_manual_without_a_value_refuses_nothing() {
        assert_eq!(
            gpus("name,temperature.memory,power.draw.instant,ecc.errors.corrected.volatile.dram,", "csv"),
            "name, temperature.memory, power.draw.instant [W], ecc.errors.corrected.volatile.dram\n\
             Soft GPU, [N/A], [N/A], [N/A]\n"
        );
    }

    #[test]
    fn a_field_of_no_manual_is_refused_in_nvidias_words() {
        let refused = Query::new(Subject::Gpu, "name,colour").unwrap_err();
        assert_eq!(refused, "Field \"colour\" is not a valid field to query.\n");
    }

    #[test]
    fn of_what_is_not_told_there_are_the_lines_that_nvidias_program_prints() {
        let lines = |subject, fields| Query::new(subject, fields).unwrap().lines(&system());
        assert_eq!(
            lines(Subject::RetiredPages, "gpu_name,retired_pages.address,retired_pages.cause"),
            "gpu_name, retired_pages.address, retired_pages.cause\n\
             Soft GPU, [N/A], Single Bit ECC\nSoft GPU, [N/A], Double Bit ECC\n"
        );
        assert_eq!(
            lines(Subject::AccountedApps, "pid,gpu_util,max_memory_usage,time"),
            "pid, gpu_utilization [%], max_memory_usage [MiB], time [ms]\n"
        );
        assert_eq!(lines(Subject::SupportedClocks, "mem,gr"), "memory [MHz], graphics [MHz]\n[N/A], [N/A]\n");
        assert_eq!(lines(Subject::RemappedRows, "remapped_rows.sbe"), "remapped_rows.correctable\n[N/A]\n");
    }
}
