//! `dmon` and `pmon`: print a line for each GPU or process at each interval.

use crate::snapshot::{Gpu, Process, System};
use std::fmt::Write;

/// A column: its title, its unit, and the function that reads its value.
type Column<Row> = (&'static str, &'static str, fn(&Row) -> Option<String>);

/// Metrics by the letter of `-s`, in the order of columns. A value that NVML does not return is printed as a dash, as
/// in NVIDIA's program.
const OF_GPUS: &[(char, &[Column<Gpu>])] = &[
    (
        'p',
        &[
            ("pwr", "W", |gpu| number(gpu.power_usage.map(|power| (power + 500) / 1000))),
            ("gtemp", "C", |gpu| number(gpu.temperature)),
            ("mtemp", "C", |_| None),
        ],
    ),
    (
        'u',
        &[
            ("sm", "%", |gpu| number(gpu.utilization)),
            ("mem", "%", |gpu| number(gpu.memory_utilization)),
            ("enc", "%", |gpu| number(gpu.encoder_utilization)),
            ("dec", "%", |gpu| number(gpu.decoder_utilization)),
            ("jpg", "%", |_| None),
            ("ofa", "%", |_| None),
        ],
    ),
    ('c', &[("mclk", "MHz", |gpu| number(gpu.clock_memory)), ("pclk", "MHz", |gpu| number(gpu.clock_graphics))]),
    ('v', &[("pviol", "%", |_| None), ("tviol", "bool", |_| None)]),
    (
        'm',
        &[
            ("fb", "MB", |gpu| number(gpu.memory_used)),
            ("bar1", "MB", |gpu| number(gpu.bar1_used)),
            ("ccpm", "MB", |_| None),
        ],
    ),
    (
        'e',
        &[
            ("sbecc", "errs", |gpu| number(gpu.corrected_ecc_errors)),
            ("dbecc", "errs", |gpu| number(gpu.ecc_errors)),
            ("pci", "errs", |_| None),
        ],
    ),
    ('t', &[("rxpci", "MB/s", |_| None), ("txpci", "MB/s", |_| None)]),
];

const OF_PROCESSES: &[(char, &[Column<Process>])] = &[
    (
        'u',
        &[
            ("sm", "%", |_| None),
            ("mem", "%", |_| None),
            ("enc", "%", |_| None),
            ("dec", "%", |_| None),
            ("jpg", "%", |_| None),
            ("ofa", "%", |_| None),
        ],
    ),
    ('m', &[("fb", "MB", |process| number(process.memory)), ("ccpm", "MB", |_| None)]),
];

fn number(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

#[derive(Debug, PartialEq)]
pub struct Monitor {
    pub processes: bool,
    /// The selected letters of `-s`.
    metrics: Vec<char>,
}

impl Monitor {
    pub fn of_gpus() -> Self {
        Self { processes: false, metrics: vec!['p', 'u', 'c'] }
    }

    pub fn of_processes() -> Self {
        Self { processes: true, metrics: vec!['u'] }
    }

    pub fn set_metrics(&mut self, letters: &str) -> Result<(), String> {
        let of_gpus: Vec<char> = OF_GPUS.iter().map(|(letter, _)| *letter).collect();
        let of_processes: Vec<char> = OF_PROCESSES.iter().map(|(letter, _)| *letter).collect();
        let known = if self.processes { of_processes } else { of_gpus };
        match letters.chars().find(|letter| !known.contains(letter)) {
            Some(letter) => Err(format!("Metric {letter:?} is not known: {}.", known.iter().collect::<String>())),
            None => {
                self.metrics = letters.chars().collect();
                Ok(())
            }
        }
    }

    /// Returns the two header lines: titles and units.
    pub fn header(&self) -> String {
        if self.processes {
            let columns = columns(OF_PROCESSES, &self.metrics);
            let line = |first: &str, of: fn(&Column<Process>) -> &'static str, last: &str| {
                columns.iter().fold(first.to_owned(), |line, column| format!("{line}{:>7}", of(column))) + last
            };
            line("# gpu         pid   type", |column| column.0, "    command \n")
                + &line("# Idx           #    C/G", |column| column.1, "    name \n")
        } else {
            let columns = columns(OF_GPUS, &self.metrics);
            let line = |first: &str, of: fn(&Column<Gpu>) -> &'static str| {
                columns.iter().fold(first.to_owned(), |line, column| format!("{line}{:>7}", of(column))) + " \n"
            };
            line("# gpu", |column| column.0) + &line("# Idx", |column| column.1)
        }
    }

    pub fn values(&self, system: &System) -> String {
        if self.processes { self.process_lines(system) } else { self.gpu_lines(system) }
    }

    fn gpu_lines(&self, system: &System) -> String {
        let mut out = String::new();
        for gpu in &system.gpus {
            let _ = write!(out, "{:>5}", gpu.index);
            for (_, _, read) in columns(OF_GPUS, &self.metrics) {
                let _ = write!(out, "{:>7}", read(gpu).unwrap_or_else(|| "-".to_owned()));
            }
            out += " \n";
        }
        out
    }

    fn process_lines(&self, system: &System) -> String {
        let mut out = String::new();
        for gpu in &system.gpus {
            let nobody = Process::default();
            let processes = if gpu.processes.is_empty() { std::slice::from_ref(&nobody) } else { &gpu.processes };
            for process in processes {
                let there = process.id != 0;
                let (id, kind) = if there { (process.id.to_string(), "C") } else { ("-".to_owned(), "-") };
                let _ = write!(out, "{:>5}{id:>12}{kind:>7}", gpu.index);
                for (_, _, read) in columns(OF_PROCESSES, &self.metrics) {
                    let _ = write!(out, "{:>7}", read(process).unwrap_or_else(|| "-".to_owned()));
                }
                let name = process.name.as_deref().map_or("-", |name| name.rsplit('/').next().unwrap_or(name));
                let _ = writeln!(out, "    {name}");
            }
        }
        out
    }
}

fn columns<Row>(table: &'static [(char, &'static [Column<Row>])], metrics: &[char]) -> Vec<&'static Column<Row>> {
    table.iter().filter(|(letter, _)| metrics.contains(letter)).flat_map(|(_, columns)| columns.iter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_below_their_names() {
        let gpu = Gpu { utilization: Some(37), memory_used: Some(300), ..Gpu::default() };
        let system = System { gpus: vec![gpu], ..System::default() };
        let mut monitor = Monitor::of_gpus();
        monitor.set_metrics("um").unwrap();
        let text = monitor.header() + &monitor.values(&system);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let column = |name: &str| lines[0].iter().position(|&word| word == name).unwrap() - 1;
        assert_eq!((lines[2][column("sm")], lines[2][column("fb")], lines[2][column("enc")]), ("37", "300", "-"));
        assert!(text.lines().all(|line| line.len() == text.lines().next().unwrap().len()), "{text}");
        assert!(monitor.set_metrics("x").is_err());
    }

    #[test]
    fn a_gpu_without_a_process_has_a_line_of_dashes() {
        let busy = Gpu {
            index: 1,
            processes: vec![Process { id: 7, name: Some("/usr/bin/python3".to_owned()), memory: None }],
            ..Gpu::default()
        };
        let system = System { gpus: vec![Gpu::default(), busy], ..System::default() };
        let text = Monitor::of_processes().values(&system);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["0", "-", "-", "-", "-", "-", "-", "-", "-", "-"]);
        assert_eq!((lines[1][1], lines[1][2], lines[1][9]), ("7", "C", "python3"));
    }
}
