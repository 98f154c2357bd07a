//! Where shared variables go.
//!
//! A variable only one kernel names is placed for that kernel alone. Those that device functions or several kernels name
//! have one fixed place, in front, in every kernel that can reach them.

use std::collections::{HashMap, HashSet};

use crate::engine::ptx::ast::{Body, Function, Linkage, Module, Operand, Var, VarSpace};

/// Dynamic shared memory begins at a multiple of it, whatever its variables ask for.
const MIN_DYNAMIC_ALIGN: u32 = 16;

/// Placement of the shared variables of all units.
pub struct SharedLayout<'a> {
    /// Module-scope variables, by unit and name.
    offsets: HashMap<(usize, &'a str), u32>,
    /// Variables inside functions, by unit, function and variable.
    inner: HashMap<(usize, usize, usize), u32>,
    /// The bytes each entry needs, by unit and function.
    sizes: HashMap<(usize, usize), u32>,
    /// How often the shared variables of several units' scope are declared, by name: those with a definition.
    defined: HashMap<&'a str, usize>,
    /// The alignment of dynamic shared memory, which all variables of it share.
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

/// Whether the size is given at launch, for the variable says none.
fn is_open(var: &Var) -> bool {
    var.space == VarSpace::Shared && var.size == 0
}

/// The strictest alignment of a dynamic variable, and at least that of the widest access: programs put wider types into
/// an array of bytes.
fn dynamic_align(modules: &[Module], layout: &SharedLayout) -> u32 {
    let inner = modules.iter().flat_map(|module| &module.functions).filter_map(|function| function.body.as_ref());
    let vars = modules.iter().flat_map(|module| &module.vars).chain(inner.flat_map(|body| &body.vars));
    vars.filter(|var| layout.is_dynamic(var)).map(|var| var.align).fold(MIN_DYNAMIC_ALIGN, u32::max)
}

fn place(var: &Var, end: &mut u64) -> u32 {
    let offset = end.next_multiple_of(var.align.into());
    *end = offset.saturating_add(var.size);
    u32::try_from(offset).unwrap_or(u32::MAX)
}

impl<'a> SharedLayout<'a> {
    pub fn new(modules: &[Module<'a>]) -> SharedLayout<'a> {
        let mut layout = SharedLayout {
            offsets: HashMap::new(),
            inner: HashMap::new(),
            sizes: HashMap::new(),
            defined: HashMap::new(),
            dynamic_align: MIN_DYNAMIC_ALIGN,
        };
        let shared = modules.iter().flat_map(|module| &module.vars).filter(|var| var.space == VarSpace::Shared);
        for var in shared.clone().filter(|var| var.linkage != Linkage::Extern && var.linkage != Linkage::Internal) {
            layout.defined.insert(var.name, shared.clone().filter(|other| other.name == var.name).count());
        }
        layout.dynamic_align = dynamic_align(modules, &layout);
        let mut common = 0;
        let mut private: Vec<((usize, usize), Vec<&Var<'a>>)> = Vec::new();
        let mut calls = HashSet::new();
        for (unit, module) in modules.iter().enumerate() {
            let mut users: HashMap<&str, Vec<usize>> = HashMap::new();
            let functions: HashSet<&str> = module.functions.iter().map(|f| f.name).collect();
            for (index, function) in module.functions.iter().enumerate() {
                let Some(body) = &function.body else { continue };
                let used = body_names(body);
                if used.iter().any(|name| functions.contains(name)) || body.instrs.iter().any(|i| i.op == "call") {
                    calls.insert((unit, index));
                }
                used.into_iter().for_each(|name| users.entry(name).or_default().push(index));
                if !function.entry {
                    layout.place_inner(unit, index, body, &mut common);
                }
            }
            let mut own: HashMap<usize, Vec<&Var<'a>>> = HashMap::new();
            let fixed = |var: &&Var| var.space == VarSpace::Shared && !layout.is_dynamic(var);
            for var in module.vars.iter().filter(fixed).collect::<Vec<_>>() {
                // A variable that other units may name has to have a fixed place.
                let alone = var.linkage == Linkage::Internal || layout.defined.get(var.name) == Some(&1);
                match users.get(var.name).map(Vec::as_slice) {
                    Some(&[user]) if module.functions[user].entry && alone => {
                        own.entry(user).or_default().push(var);
                    }
                    None if alone => {}
                    using => {
                        // One that is elsewhere has its place in the unit that defines it.
                        if var.linkage != Linkage::Extern {
                            layout.offsets.insert((unit, var.name), place(var, &mut common));
                        }
                        calls.extend(using.into_iter().flatten().map(|&index| (unit, index)));
                    }
                }
            }
            private.extend(own.into_iter().map(|(index, vars)| ((unit, index), vars)));
        }
        let mut ends: HashMap<(usize, usize), u64> = HashMap::new();
        for (unit, module) in modules.iter().enumerate() {
            for (index, function) in module.functions.iter().enumerate() {
                if let (true, Some(body)) = (function.entry, &function.body) {
                    let mut end = if calls.contains(&(unit, index)) { common } else { 0 };
                    layout.place_inner(unit, index, body, &mut end);
                    ends.insert((unit, index), end);
                }
            }
        }
        for ((unit, index), vars) in private {
            let end = ends.entry((unit, index)).or_default();
            for var in vars {
                layout.offsets.insert((unit, var.name), place(var, end));
            }
        }
        layout.sizes = ends.into_iter().map(|(key, end)| (key, u32::try_from(end).unwrap_or(u32::MAX))).collect();
        layout
    }

    /// Whether the size is given at launch: the variable says none, or says that it is elsewhere and no unit has it.
    pub fn is_dynamic(&self, var: &Var) -> bool {
        let elsewhere = var.space == VarSpace::Shared && var.linkage == Linkage::Extern;
        is_open(var) || elsewhere && !self.defined.contains_key(var.name)
    }

    fn place_inner(&mut self, unit: usize, function: usize, body: &Body, end: &mut u64) {
        for (index, var) in body.vars.iter().enumerate() {
            if var.space == VarSpace::Shared && !is_open(var) {
                self.inner.insert((unit, function, index), place(var, end));
            }
        }
    }

    pub fn offset(&self, unit: usize, name: &str) -> Option<u32> {
        self.offsets.get(&(unit, name)).copied()
    }

    pub fn inner_offset(&self, unit: usize, function: usize, var: usize) -> Option<u32> {
        self.inner.get(&(unit, function, var)).copied()
    }

    /// The static shared memory of an entry.
    pub fn size(&self, unit: usize, function: usize) -> u32 {
        self.sizes.get(&(unit, function)).copied().unwrap_or(0)
    }
}

/// Parameters of an entry in its parameter buffer: (offset, size, align) each, and the size of the buffer.
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
