//! `topo -m`: a matrix of the connections between GPUs.

use crate::snapshot::System;

/// Words of the matrix by `NVML_TOPOLOGY_*`, nearest first.
const LEVELS: [(u32, &str, &str); 6] = [
    (0, "PIX", "one board"),
    (10, "PIX", "at most one PCIe bridge"),
    (20, "PXB", "several PCIe bridges, none of a CPU"),
    (30, "PHB", "a PCIe host bridge, that is a CPU"),
    (40, "NODE", "PCIe and the host bridges of one NUMA node"),
    (50, "SYS", "PCIe and what connects NUMA nodes or machines"),
];

/// Returns the matrix. The columns about CPUs are empty, because the CPUs near a remote GPU belong to another machine.
pub fn matrix(system: &System) -> String {
    let names: Vec<String> = system.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)).collect();
    let mut out = format!("\t{}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", names.join("\t"));
    for (gpu, name) in system.gpus.iter().zip(&names) {
        let cells = system.gpus.iter().map(|other| match gpu.ancestors.get(other.index) {
            _ if other.index == gpu.index => " X ",
            Some(Some(level)) => LEVELS.iter().find(|(known, ..)| known == level).map_or("N/A", |(_, word, _)| word),
            _ => "N/A",
        });
        out += &format!("{name}\t{}\tN/A\tN/A\t\tN/A\n", cells.collect::<Vec<_>>().join("\t"));
    }
    out += "\nLegend:\n\n  X    = Self\n";
    for (_, word, meaning) in LEVELS[1..].iter().rev() {
        out += &format!("  {word:<4} = Connection by {meaning}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Gpu;

    #[test]
    fn the_diagonal_is_the_gpu_itself() {
        let gpu = |index| Gpu { index, ancestors: vec![Some(50), Some(50)], ..Gpu::default() };
        let text = matrix(&System { gpus: vec![gpu(0), gpu(1)], ..System::default() });
        assert!(text.contains("\nGPU0\t X \tSYS\t") && text.contains("\nGPU1\tSYS\t X \t"), "{text}");
    }
}
