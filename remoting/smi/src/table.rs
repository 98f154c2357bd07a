//! The default output: a table of GPUs and processes in the format of NVIDIA's program, which scripts parse.

use crate::clock;
use crate::snapshot::{Gpu, System};
use std::fmt::Write;

/// Inner widths of the three columns. A whole line has 91 characters.
const COLUMNS: [usize; 3] = [41, 24, 22];
const INNER: usize = COLUMNS[0] + COLUMNS[1] + COLUMNS[2] + 2;

fn or_na(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "N/A".to_owned(), |value| value.to_string())
}

/// Shortens `text` to at most `width` characters; "..." replaces the end.
fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    kept + "..."
}

fn mebibytes(value: Option<u64>) -> String {
    value.map_or_else(|| "N/A".to_owned(), |value| format!("{value}MiB"))
}

fn watts(value: Option<u32>) -> String {
    value.map_or_else(|| "N/A".to_owned(), |milliwatts| format!("{}W", (milliwatts + 500) / 1000))
}

fn switch(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "On",
        Some(false) => "Off",
        None => "N/A",
    }
}

fn rule(fill: &str, edges: [char; 2]) -> String {
    let [edge, joint] = edges;
    let [first, second, third] = COLUMNS.map(|width| fill.repeat(width));
    format!("{edge}{first}{joint}{second}{joint}{third}{edge}\n")
}

fn whole_rule(fill: &str, edge: char) -> String {
    format!("{edge}{}{edge}\n", fill.repeat(INNER))
}

fn whole_line(text: &str) -> String {
    format!("|{text:<INNER$}|\n")
}

fn row(cells: [String; 3]) -> String {
    let [first, second, third] = cells;
    let [a, b, c] = COLUMNS;
    format!("|{first:<a$}|{second:>b$}|{third:>c$}|\n")
}

/// Returns the list of `-L`: one line for each GPU.
pub fn list(system: &System) -> String {
    let line =
        |gpu: &Gpu| format!("GPU {}: {} (UUID: {})\n", gpu.index, or_na(gpu.name.as_ref()), or_na(gpu.uuid.as_ref()));
    system.gpus.iter().map(line).collect()
}

/// Returns the whole table: header, GPUs and processes.
pub fn overview(system: &System) -> String {
    let cuda = system.cuda_version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    let title = format!(
        " {:<33} {:<32} {:<20}",
        concat!("remotegpu-smi ", env!("CARGO_PKG_VERSION")),
        format!("Driver Version: {}", or_na(system.driver_version.as_ref())),
        format!("CUDA Version: {}", or_na(cuda)),
    );
    let mut out = clock::now(c"%a %b %e %H:%M:%S %Y") + "\n";
    out += &whole_rule("-", '+');
    out += &whole_line(&title);
    out += &rule("-", ['+', '+']);
    out += "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n";
    out += "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n";
    out += "|                                         |                        |               MIG M. |\n";
    out += &rule("=", ['|', '+']);
    for gpu in &system.gpus {
        out += &rows(gpu);
        out += &rule("-", ['+', '+']);
    }
    out += "\n";
    out += &processes(system);
    out
}

fn rows(gpu: &Gpu) -> String {
    let percent = |value: Option<u32>| value.map_or_else(|| "N/A".to_owned(), |value| format!("{value}%"));
    let mig = gpu.mig_mode.map(|on| if on { "Enabled" } else { "Disabled" });
    let compute = gpu.compute_mode_name().map(|name| name.replace("Exclusive_Process", "E. Process"));
    let performance = gpu.performance_state.map(|state| format!("P{state}"));
    let temperature = gpu.temperature.map(|degrees| format!("{degrees}C"));
    [
        row([
            format!(
                " {:>3}  {:<24} {:>8}  ",
                gpu.index,
                shorten(&or_na(gpu.name.as_ref()), 24),
                switch(gpu.persistence_mode)
            ),
            format!("{} {:>3} ", or_na(gpu.bus_id.as_ref()), switch(gpu.display_active)),
            format!("{} ", or_na(gpu.ecc_errors)),
        ]),
        row([
            format!(
                " {:<4} {:>4}    {:<4} {:>12} / {:>5} ",
                percent(gpu.fan_speed),
                or_na(temperature),
                or_na(performance),
                watts(gpu.power_usage),
                watts(gpu.power_limit)
            ),
            format!("{:>9} / {:>9} ", mebibytes(gpu.memory_used), mebibytes(gpu.memory_total)),
            format!("{:>7} {:>12} ", percent(gpu.utilization), or_na(compute)),
        ]),
        row([String::new(), String::new(), format!("{} ", or_na(mig))]),
    ]
    .concat()
}

fn processes(system: &System) -> String {
    let mut out = whole_rule("-", '+');
    out += &whole_line(" Processes:");
    out += &whole_line("  GPU   GI   CI              PID   Type   Process name                        GPU Memory ");
    out += &whole_line("        ID   ID                                                               Usage      ");
    out += &whole_rule("=", '|');
    let mut any = false;
    for gpu in &system.gpus {
        for process in &gpu.processes {
            any = true;
            let name = shorten(&or_na(process.name.as_ref()), 35);
            let mut line = String::new();
            let _ = write!(line, "{:>5}  {:>3}  {:>3} {:>16} {:>6}", gpu.index, "N/A", "N/A", process.id, "C");
            let _ = write!(line, "   {name:<35} {:>10} ", mebibytes(process.memory));
            out += &whole_line(&line);
        }
    }
    if !any {
        out += &whole_line("  No running processes found");
    }
    out + &whole_rule("-", '+')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Process;

    fn gpu() -> Gpu {
        Gpu {
            name: Some("A GPU with a name that is too long for it".to_owned()),
            uuid: Some("GPU-1".to_owned()),
            bus_id: Some("00000000:18:00.0".to_owned()),
            memory_total: Some(81_559),
            memory_used: Some(1_234),
            utilization: Some(37),
            power_usage: Some(70_499),
            performance_state: Some(0),
            mig_mode: Some(false),
            compute_mode: Some(0),
            processes: vec![Process { id: 4_242, name: Some("python3".to_owned()), memory: Some(1_200) }],
            ..Gpu::default()
        }
    }

    #[test]
    fn all_lines_are_as_wide_and_hold_the_values() {
        let system = System {
            driver_version: Some("580.65.06".to_owned()),
            cuda_version: Some(13_000),
            attached: 1,
            gpus: vec![gpu()],
        };
        let text = overview(&system);
        let boxed: Vec<_> = text.lines().filter(|line| line.starts_with(['|', '+'])).collect();
        assert!(boxed.iter().all(|line| line.len() == 91), "{text}");
        for part in ["CUDA Version: 13.0 ", "Driver Version: 580.65.06", "1234MiB /  81559MiB", " 37% ", "70W /", "P0"]
        {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(text.contains("A GPU with a name tha... "));
        let process = text.lines().find(|line| line.contains("4242")).unwrap();
        assert!(process.ends_with("1200MiB |") && process.contains("   C   python3 "));
        assert_eq!(list(&system), "GPU 0: A GPU with a name that is too long for it (UUID: GPU-1)\n");
    }

    #[test]
    fn nothing_known_is_still_a_table() {
        let text = overview(&System { gpus: vec![Gpu::default()], ..System::default() });
        assert!(text.contains("No running processes found"));
        assert!(text.lines().filter(|line| line.starts_with(['|', '+'])).all(|line| line.len() == 91), "{text}");
    }
}
