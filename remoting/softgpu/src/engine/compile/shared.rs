//! Where shared variables go.
//!
//! A variable only one kernel names is placed for that kernel alone. Those that device functions or several kernels name
//! have one fixed place, in front, in every kernel that can reach them.

use std::collections::{HashMap, HashSet};

use crate::engine::ptx::ast::{Body, Function, Linkage, Module, Operand, Var, VarSpace};

/// Placement of the shared variables of all units.
pub struct SharedLayout<'a> {
    /// Module-scope variables, by unit and name.
    offsets: HashMap<(usize, &'a str), u32>,
    /// Variables inside functions, by unit, function and variable.
    inner: HashMap<(usize, usize, usize), u32>,
    /// The bytes each entry needs, by unit and function.
    sizes: HashMap<(usize, usize), u32>,
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

/// Whether the size is given at launch.
pub fn is_dynamic(var: &Var) -> bool {
    var.space == VarSpace::Shared && var.size == 0
}

fn place(var: &Var, end: &mut u64) -> u32 {
    let offset = end.next_multiple_of(var.align.into());
    *end = offset.saturating_add(var.size);
    u32::try_from(offset).unwrap_or(u32::MAX)
}

impl<'a> SharedLayout<'a> {
    pub fn new(modules: &[Module<'a>]) -> SharedLayout<'a> {
        let mut layout = SharedLayout { offsets: HashMap::new(), inner: HashMap::new(), sizes: HashMap::new() };
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
            for var in module.vars.iter().filter(|v| v.space == VarSpace::Shared && !is_dynamic(v)) {
                match users.get(var.name).map(Vec::as_slice) {
                    // A variable other units may name has to have a fixed place.
                    Some(&[user]) if module.functions[user].entry && var.linkage == Linkage::Internal => {
                        own.entry(user).or_default().push(var);
                    }
                    None if var.linkage == Linkage::Internal => {}
                    _ if var.linkage == Linkage::Extern => {}
                    using => {
                        layout.offsets.insert((unit, var.name), place(var, &mut common));
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

    fn place_inner(&mut self, unit: usize, function: usize, body: &Body, end: &mut u64) {
        for (index, var) in body.vars.iter().enumerate() {
            if var.space == VarSpace::Shared && !is_dynamic(var) {
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
