//! Programs from machine code, which are never run. They contain only the kernels and variables that the cubins
//! describe.

use super::code::{Code, Pool};
use super::compile::{Contents, Linked};
use super::interface::{Global, Kernel, Param, Space};
use driverapi::cubin::{self, Cubin, Variable};
use driverapi::registers::{MAX_THREADS, threads_with};
use std::collections::HashSet;

/// The alignment of variables in bytes. Machine code does not contain it, so this is the alignment of the driver's
/// allocations.
const ALIGN: u64 = 256;

/// Returns the kernels and variables of all cubins. If several have the same name, the first one is used.
pub fn describe(cubins: &[Cubin]) -> Linked {
    let (mut seen, mut known) = (HashSet::new(), HashSet::new());
    let kernels: Vec<Kernel> = cubins
        .iter()
        .flat_map(|cubin| cubin.kernels.iter().map(|found| (found, cubin.architecture)))
        .filter(|(found, _)| seen.insert(found.name.as_str()))
        .map(|(found, architecture)| kernel(found, architecture))
        .collect();
    let variables: Vec<&Variable> = cubins
        .iter()
        .flat_map(|cubin| &cubin.variables)
        .filter(|v| !v.visible || known.insert(v.name.as_str()))
        .collect();
    Linked {
        code: Code::default(),
        pool: Pool::default(),
        entries: vec![0; kernels.len()],
        kernels,
        globals: variables.iter().map(|v| global(v)).collect(),
        contents: variables.iter().map(|v| Contents { bytes: v.contents.clone(), relocations: Vec::new() }).collect(),
    }
}

fn kernel(found: &cubin::Kernel, architecture: u32) -> Kernel {
    let product = |extent: [u32; 3]| extent.iter().fold(1u32, |all, &n| all.saturating_mul(n));
    let declared = found.required_block.or(found.max_block).map_or(MAX_THREADS, product);
    Kernel {
        name: found.name.clone(),
        architecture,
        params: found.params.iter().map(|p| Param { offset: p.offset, size: p.size, align: 1 }).collect(),
        param_bytes: found.param_bytes,
        static_shared: found.static_shared,
        local_bytes: found.local_bytes,
        registers: found.registers,
        max_threads: declared.min(threads_with(found.registers)),
        reqntid: found.required_block,
        required_cluster: found.required_cluster,
        max_cluster: found.max_cluster,
        ignores_clusters: false,
        unsupported: None,
    }
}

fn global(variable: &Variable) -> Global {
    Global {
        name: variable.name.clone(),
        size: variable.size,
        align: ALIGN,
        space: if variable.constant { Space::Const } else { Space::Global },
        visible: variable.visible,
        managed: variable.managed,
    }
}
