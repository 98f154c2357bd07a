//! Placement of shared variables.
//!
//! A variable has one fixed offset. In each kernel that can reach the variable, no other reachable variable uses these
//! bytes. A kernel therefore needs the bytes up to the end of the last variable that it can reach.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::engine::ptx::ast::{Body, Function, Instr, Linkage, Module, Operand, Var, VarSpace};

/// The minimum alignment in bytes of dynamic shared memory.
const MIN_DYNAMIC_ALIGN: u32 = 16;

/// A function: the index of its unit, and its index in the unit.
type Node = (usize, usize);

/// The offsets of the shared variables of all units.
pub struct SharedLayout<'a> {
    /// The offset of each module-scope variable, by unit and name.
    offsets: HashMap<(usize, &'a str), u32>,
    /// The offset of each variable inside a function, by unit, function and variable.
    inner: HashMap<(usize, usize, usize), u32>,
    /// The bytes of shared memory that each entry needs.
    sizes: HashMap<Node, u32>,
    /// The names of variables that other units may use.
    defined: HashSet<&'a str>,
    /// The alignment of dynamic shared memory in bytes, which all dynamic variables share.
    pub dynamic_align: u32,
}

fn names<'a>(operand: &Operand<'a>, out: &mut HashSet<&'a str>) {
    match operand {
        Operand::Symbol(name) => {
            out.insert(name);
        }
        Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|item| names(item, out)),
        Operand::Address(base, _) | Operand::Not(base) => names(base, out),
        _ => {}
    }
}

fn body_names<'a>(body: &Body<'a>) -> HashSet<&'a str> {
    let mut out = HashSet::new();
    body.instrs.iter().flat_map(|instr| &instr.operands).for_each(|operand| names(operand, &mut out));
    out
}

/// Whether the variable has no size, so that the launch determines its size.
fn is_open(var: &Var) -> bool {
    var.space == VarSpace::Shared && var.size == 0
}

/// Returns the strictest alignment of all dynamic variables. It is at least the alignment of the widest access, because
/// programs put wider types into an array of bytes.
fn dynamic_align(modules: &[Module], layout: &SharedLayout) -> u32 {
    let inner = modules.iter().flat_map(|module| &module.functions).filter_map(|function| function.body.as_ref());
    let vars = modules.iter().flat_map(|module| &module.vars).chain(inner.flat_map(|body| &body.vars));
    vars.filter(|var| layout.is_dynamic(var)).map(|var| var.align).fold(MIN_DYNAMIC_ALIGN, u32::max)
}

/// The names that each function uses, and the kernels that can reach each function.
struct Reach<'a> {
    users: HashMap<&'a str, Vec<Node>>,
    /// The kernels that can reach each function.
    kernels: HashMap<Node, Vec<Node>>,
}

impl<'a> Reach<'a> {
    fn new(modules: &[Module<'a>]) -> Reach<'a> {
        let mut named: HashMap<Node, HashSet<&str>> = HashMap::new();
        let mut users: HashMap<&str, Vec<Node>> = HashMap::new();
        let mut by_name: HashMap<&str, Vec<Node>> = HashMap::new();
        let (mut entries, mut indirect) = (Vec::new(), HashSet::new());
        for (unit, module) in modules.iter().enumerate() {
            for (index, function) in module.functions.iter().enumerate() {
                let Some(body) = &function.body else { continue };
                let through_register =
                    |i: &Instr| i.op == "call" && i.operands.iter().any(|o| matches!(o, Operand::Reg(_)));
                let names = body_names(body);
                names.iter().for_each(|name| users.entry(*name).or_default().push((unit, index)));
                named.insert((unit, index), names);
                if body.instrs.iter().any(through_register) {
                    indirect.insert((unit, index));
                }
                if function.entry {
                    entries.push((unit, index));
                } else {
                    by_name.entry(function.name).or_default().push((unit, index));
                }
            }
        }
        let functions: Vec<Node> = by_name.values().flatten().copied().collect();
        let mut kernels: HashMap<Node, Vec<Node>> = HashMap::new();
        for entry in entries {
            let (mut seen, mut left) = (HashSet::from([entry]), vec![entry]);
            while let Some(node) = left.pop() {
                kernels.entry(node).or_default().push(entry);
                // A call through a register may reach any function that is not an entry.
                let called: Vec<Node> = if indirect.contains(&node) {
                    functions.clone()
                } else {
                    named[&node].iter().filter_map(|name| by_name.get(name)).flatten().copied().collect()
                };
                left.extend(called.into_iter().filter(|&next| seen.insert(next)));
            }
        }
        Reach { users, kernels }
    }

    /// Returns the kernels that can reach a variable of a unit.
    fn of_variable(&self, unit: usize, var: &Var) -> Vec<Node> {
        let users = self.users.get(var.name).into_iter().flatten();
        let users = users.filter(|(of, _)| *of == unit || var.linkage != Linkage::Internal);
        let mut found: Vec<Node> = users.flat_map(|node| self.of_function(*node)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn of_function(&self, node: Node) -> Vec<Node> {
        self.kernels.get(&node).cloned().unwrap_or_default()
    }
}

/// The scope of a variable: a unit, or a function and the variable's index.
enum At {
    Scope(usize),
    Function(Node, usize),
}

impl<'a> SharedLayout<'a> {
    pub fn new(modules: &[Module<'a>]) -> SharedLayout<'a> {
        let shared = modules.iter().flat_map(|module| &module.vars).filter(|var| var.space == VarSpace::Shared);
        let mut layout = SharedLayout {
            offsets: HashMap::new(),
            inner: HashMap::new(),
            sizes: HashMap::new(),
            defined: shared
                .filter(|v| v.linkage != Linkage::Extern && v.linkage != Linkage::Internal)
                .map(|v| v.name)
                .collect(),
            dynamic_align: MIN_DYNAMIC_ALIGN,
        };
        layout.dynamic_align = dynamic_align(modules, &layout);
        let reach = Reach::new(modules);
        let mut variables: Vec<(&Var<'a>, At, Vec<Node>)> = Vec::new();
        for (unit, module) in modules.iter().enumerate() {
            let fixed = |var: &&Var| var.space == VarSpace::Shared && !is_open(var) && var.linkage != Linkage::Extern;
            for var in module.vars.iter().filter(fixed) {
                variables.push((var, At::Scope(unit), reach.of_variable(unit, var)));
            }
            for (index, function) in module.functions.iter().enumerate() {
                for (number, var) in function.body.iter().flat_map(|body| &body.vars).enumerate() {
                    if var.space == VarSpace::Shared && !is_open(var) {
                        let node = (unit, index);
                        variables.push((var, At::Function(node, number), reach.of_function(node)));
                    }
                }
            }
        }
        // Variables that most kernels use come first, because that leaves the fewest gaps.
        variables.sort_by_key(|(var, _, kernels)| Reverse((kernels.len(), var.align)));
        let mut ends: HashMap<Node, u64> = HashMap::new();
        for (var, at, kernels) in variables {
            let end = kernels.iter().filter_map(|kernel| ends.get(kernel)).max().copied().unwrap_or(0);
            let offset = end.next_multiple_of(var.align.into());
            ends.extend(kernels.into_iter().map(|kernel| (kernel, offset.saturating_add(var.size))));
            let offset = u32::try_from(offset).unwrap_or(u32::MAX);
            match at {
                At::Scope(unit) => layout.offsets.insert((unit, var.name), offset),
                At::Function((unit, index), number) => layout.inner.insert((unit, index, number), offset),
            };
        }
        layout.sizes = ends.into_iter().map(|(key, end)| (key, u32::try_from(end).unwrap_or(u32::MAX))).collect();
        layout
    }

    /// Whether the launch determines the variable's size. This holds for a variable without a size, and for an external
    /// variable that no unit defines.
    pub fn is_dynamic(&self, var: &Var) -> bool {
        let elsewhere = var.space == VarSpace::Shared && var.linkage == Linkage::Extern;
        is_open(var) || elsewhere && !self.defined.contains(var.name)
    }

    pub fn offset(&self, unit: usize, name: &str) -> Option<u32> {
        self.offsets.get(&(unit, name)).copied()
    }

    pub fn inner_offset(&self, unit: usize, function: usize, var: usize) -> Option<u32> {
        self.inner.get(&(unit, function, var)).copied()
    }

    /// Returns the bytes of static shared memory of an entry.
    pub fn size(&self, unit: usize, function: usize) -> u32 {
        self.sizes.get(&(unit, function)).copied().unwrap_or(0)
    }
}

/// Returns the offset, size and alignment of each parameter in an entry's parameter buffer, and the size of the buffer.
pub fn parameter_layout(function: &Function) -> (Vec<(u32, u32, u32)>, u32) {
    let mut end = 0u32;
    let places = function.params.iter().map(|param| {
        let size = u32::try_from(param.size).unwrap_or(u32::MAX);
        let offset = end.next_multiple_of(param.align);
        end = offset.saturating_add(size);
        (offset, size, param.align)
    });
    let places = places.collect();
    (places, end)
}
