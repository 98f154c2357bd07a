//! The linker. It resolves names across units and joins their functions to one program.

use std::collections::HashMap;

use super::grid;
use super::lower::{Index, Lowered, Refuse, lower};
use super::names::{Linker, Symbol};
use super::pool::PoolBuilder;
use super::shared::{SharedLayout, parameter_layout};
use crate::engine::code::{Code, FunctionInfo, Inst, Pool, Target};
use crate::engine::exec::{control, exec};
use crate::engine::ptx::ast::{Function, Linkage, Module, Var, VarSpace};
use crate::engine::ptx::parse;
use crate::engine::registers::registers_of;
use crate::engine::{CompileError, Global, Kernel, Param, Space};
use driverapi::constants::FIRST_WITH_CLUSTERS;
use driverapi::registers::MAX_THREADS;

/// The maximum bytes of shared memory for a block.
pub const MAX_SHARED: u32 = 227 << 10;

/// The initial contents of a global variable, with its addresses resolved.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    pub bytes: Vec<u8>,
    pub relocations: Vec<ContentsRelocation>,
}

#[derive(Debug, Clone)]
pub struct ContentsRelocation {
    pub offset: usize,
    pub size: usize,
    pub shift: u32,
    pub target: Target,
    pub addend: i64,
}

/// The linked program, which `Program` contains.
pub struct Linked {
    pub code: Code,
    pub pool: Pool,
    pub kernels: Vec<Kernel>,
    /// The function index of each kernel.
    pub entries: Vec<u32>,
    pub globals: Vec<Global>,
    pub contents: Vec<Contents>,
}

fn invalid<T>(log: String) -> Result<T, CompileError> {
    Err(CompileError { code: 218, log })
}

struct FunctionRef<'m, 'a> {
    unit: usize,
    index: usize,
    function: &'m Function<'a>,
}

/// Parses, links and decodes units of PTX.
pub fn compile(units: &[&str]) -> Result<Linked, CompileError> {
    let mut modules = Vec::with_capacity(units.len());
    for (number, text) in units.iter().enumerate() {
        let text = text.trim_end_matches('\0');
        modules.push(parse(text).or_else(|error| {
            let unit = if units.len() > 1 { format!("unit {number}, ") } else { String::new() };
            invalid(format!("{unit}line {}: {}", error.line, error.message))
        })?);
    }
    if modules.is_empty() {
        return invalid("there is no PTX".to_owned());
    }
    if grid::is_wanted(&modules) {
        modules.push(parse(grid::PTX).or_else(|error| invalid(error.message))?);
    }
    check_duplicates(&modules)?;
    let mut linker = Linker {
        units: vec![HashMap::new(); modules.len()],
        external: HashMap::new(),
        shared: SharedLayout::new(&modules),
    };
    let globals = link_variables(&mut linker, &modules)?;
    let functions = link_functions(&mut linker, &modules)?;
    build(&linker, &modules, &functions, &globals)
}

fn strong(linkage: Linkage) -> bool {
    linkage == Linkage::Visible
}

fn check_duplicates(modules: &[Module]) -> Result<(), CompileError> {
    let mut seen = std::collections::HashSet::new();
    for module in modules {
        let functions = module.functions.iter().filter(|f| f.body.is_some() && strong(f.linkage)).map(|f| f.name);
        let vars = module.vars.iter().filter(|v| strong(v.linkage)).map(|v| v.name);
        for name in functions.chain(vars) {
            if !seen.insert(name) {
                return invalid(format!("'{name}' is defined more than once"));
            }
        }
    }
    Ok(())
}

type GlobalRef<'m, 'a> = (usize, &'m Var<'a>);

fn link_variables<'m, 'a>(
    linker: &mut Linker<'a>,
    modules: &'m [Module<'a>],
) -> Result<Vec<GlobalRef<'m, 'a>>, CompileError> {
    let mut globals: Vec<GlobalRef<'m, 'a>> = Vec::new();
    for (unit, module) in modules.iter().enumerate() {
        for var in &module.vars {
            let symbol = match var.space {
                VarSpace::Shared if linker.shared.is_dynamic(var) => {
                    linker.units[unit].insert(var.name, Symbol::DynamicShared);
                    continue;
                }
                _ if var.linkage == Linkage::Extern => continue,
                VarSpace::Shared => match linker.shared.offset(unit, var.name) {
                    Some(offset) => Symbol::Shared(offset),
                    None => continue,
                },
                _ => {
                    let merged = matches!(var.linkage, Linkage::Weak | Linkage::Common);
                    if merged && linker.external.contains_key(var.name) {
                        continue;
                    }
                    globals.push((unit, var));
                    Symbol::Global(globals.len() as u32 - 1)
                }
            };
            linker.define(unit, var.name, var.linkage, symbol)?;
        }
    }
    Ok(globals)
}

fn link_functions<'m, 'a>(
    linker: &mut Linker<'a>,
    modules: &'m [Module<'a>],
) -> Result<Vec<FunctionRef<'m, 'a>>, CompileError> {
    let mut functions = Vec::new();
    for (unit, module) in modules.iter().enumerate() {
        for (index, function) in module.functions.iter().enumerate() {
            if function.body.is_none() {
                continue;
            }
            let number = functions.len() as u32;
            functions.push(FunctionRef { unit, index, function });
            // The linkage of an entry is visible unless it is weak. Its name is unique in the module.
            let linkage = if function.entry && function.linkage == Linkage::Internal {
                Linkage::Visible
            } else {
                function.linkage
            };
            linker.define(unit, function.name, linkage, Symbol::Function(number))?;
        }
        for &(name, aliasee) in &module.aliases {
            if let Some(symbol) = linker.resolve(unit, aliasee) {
                linker.units[unit].insert(name, symbol);
            }
        }
    }
    Ok(functions)
}

fn build(
    linker: &Linker,
    modules: &[Module],
    functions: &[FunctionRef],
    globals: &[GlobalRef],
) -> Result<Linked, CompileError> {
    let mut pool = PoolBuilder::default();
    let mut code = Code { dynamic_align: linker.shared.dynamic_align, ..Code::default() };
    let mut refused: Vec<Option<String>> = Vec::new();
    let mut clusters = Vec::new();
    let mut edges = Vec::new();
    for at in functions {
        match lower(linker, at.unit, at.index, at.function, &mut pool) {
            Ok(lowered) => {
                edges.push(lowered.edges.iter().copied().collect::<Vec<u32>>());
                clusters.push(lowered.clusters.then_some(()));
                append(&mut code, lowered);
                refused.push(None);
            }
            Err(Refuse(why)) => {
                edges.push(Vec::new());
                clusters.push(None);
                append_trap(&mut code, at.function.name);
                refused.push(Some(why));
            }
        }
    }
    spread(&mut refused, &edges);
    spread(&mut clusters, &edges);
    let (mut kernels, mut entries) = (Vec::new(), Vec::new());
    for (number, at) in functions.iter().enumerate().filter(|(_, at)| at.function.entry) {
        if linker.resolve(at.unit, at.function.name) != Some(Symbol::Function(number as u32)) {
            continue;
        }
        let static_shared = linker.shared.size(at.unit, at.index);
        if static_shared > MAX_SHARED {
            return invalid(format!("'{}' uses too much shared memory: {static_shared} bytes", at.function.name));
        }
        let architecture = modules[at.unit].target;
        kernels.push(Kernel {
            architecture,
            ignores_clusters: clusters[number].is_none() && architecture >= FIRST_WITH_CLUSTERS,
            unsupported: refused[number].clone(),
            ..kernel(at.function, &code.functions[number], static_shared)
        });
        entries.push(number as u32);
    }
    let contents = globals.iter().map(|&(unit, var)| contents(linker, unit, var)).collect::<Result<_, _>>()?;
    let globals = globals.iter().map(|(_, var)| Global {
        name: var.name.to_owned(),
        size: var.size,
        align: var.align.into(),
        space: if var.space == VarSpace::Const { Space::Const } else { Space::Global },
        visible: var.linkage != Linkage::Internal,
        managed: var.managed,
    });
    Ok(Linked { code, pool: pool.finish(), kernels, entries, globals: globals.collect(), contents })
}

/// Adds a function to the code, and converts its indices to those of the program.
fn append(code: &mut Code, lowered: Lowered) {
    let (pc, lists, tables, calls) = (code.insts.len(), code.lists.len() as u32, code.tables.len(), code.calls.len());
    for (mut inst, index) in lowered.insts.into_iter().zip(lowered.indices) {
        inst.targets.start += lists;
        inst.sources.start += lists;
        inst.imm += match index {
            Index::Nothing => 0,
            Index::Pc => pc,
            Index::Table => tables,
            Index::Call => calls,
        } as i64;
        code.insts.push(inst);
    }
    code.lines.extend(lowered.lines);
    code.lists.extend(lowered.lists);
    code.tables.extend(lowered.tables.iter().map(|target| target + pc as u32));
    code.calls.extend(lowered.calls);
    code.barriers |= lowered.barriers;
    code.heap |= lowered.heap;
    code.functions.push(FunctionInfo { entry_pc: pc as u32, ..lowered.info });
}

/// Adds a placeholder for a function that is not supported. Kernels that can reach it are refused.
fn append_trap(code: &mut Code, name: &str) {
    let info = FunctionInfo {
        name: name.to_owned(),
        entry_pc: code.insts.len() as u32,
        slots: 0,
        preds: 0,
        local_bytes: 0,
        params: Vec::new(),
        returns: Vec::new(),
    };
    code.functions.push(info);
    code.insts.push(Inst::new(exec::<control::Trap>()));
    code.lines.push(0);
}

/// Propagates marks along calls. If a function has a mark, such as the reason for its refusal, then all functions that
/// can reach it get the mark.
fn spread<T: Clone>(marks: &mut [Option<T>], edges: &[Vec<u32>]) {
    let mut changed = true;
    while changed {
        changed = false;
        for from in 0..edges.len() {
            if marks[from].is_some() {
                continue;
            }
            if let Some(mark) = edges[from].iter().find_map(|&to| marks[to as usize].clone()) {
                marks[from] = Some(mark);
                changed = true;
            }
        }
    }
}

fn kernel(function: &Function, info: &FunctionInfo, static_shared: u32) -> Kernel {
    let (layout, param_bytes) = parameter_layout(function);
    let product = |extent: [u32; 3]| extent.iter().fold(1u32, |all, &n| all.saturating_mul(n));
    let max_threads = function.reqntid.or(function.maxntid).map_or(MAX_THREADS, product).min(MAX_THREADS);
    Kernel {
        name: function.name.to_owned(),
        architecture: 0,
        params: layout.into_iter().map(|(offset, size, align)| Param { offset, size, align }).collect(),
        param_bytes,
        static_shared,
        local_bytes: info.local_bytes,
        registers: registers_of(info.slots, max_threads, function.min_blocks, function.max_registers),
        max_threads,
        reqntid: function.reqntid,
        required_cluster: None,
        max_cluster: None,
        ignores_clusters: false,
        unsupported: None,
    }
}

fn contents(linker: &Linker, unit: usize, var: &Var) -> Result<Contents, CompileError> {
    let mut relocations = Vec::new();
    for relocation in &var.init.relocations {
        let target = match linker.resolve(unit, relocation.symbol) {
            Some(Symbol::Global(index)) => Target::Global(index),
            Some(Symbol::Function(index)) => Target::Function(index),
            _ => {
                return invalid(format!("'{}' in the initialiser of '{}' is not defined", relocation.symbol, var.name));
            }
        };
        relocations.push(ContentsRelocation {
            offset: relocation.offset as usize,
            size: relocation.size as usize,
            shift: relocation.shift,
            target,
            addend: relocation.addend,
        });
    }
    Ok(Contents { bytes: var.init.bytes.clone(), relocations })
}
