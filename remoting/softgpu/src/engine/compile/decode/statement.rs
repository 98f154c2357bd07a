//! Access to a statement's operands and to its modifiers. A modifier that was used is removed.

use crate::engine::code::{Exec, Inst};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

/// The modifiers of an instruction that have not been used yet.
pub struct Mods<'i> {
    parts: &'i [&'i str],
    used: u64,
}

impl<'i> Mods<'i> {
    pub fn new(parts: &'i [&'i str]) -> Self {
        Mods { parts, used: 0 }
    }

    fn unused(&self) -> impl Iterator<Item = (usize, &'i str)> + '_ {
        self.parts.iter().copied().enumerate().filter(|(at, _)| *at >= 64 || self.used >> at & 1 == 0)
    }

    /// Removes a modifier. Returns whether it was there.
    pub fn has(&mut self, name: &str) -> bool {
        let found = self.unused().find(|(at, part)| *at < 64 && *part == name).map(|(at, _)| at);
        if let Some(at) = found {
            self.used |= 1 << at;
        }
        found.is_some()
    }

    /// Removes the first modifier that is in `names`, and returns its index in `names`.
    pub fn one_of(&mut self, names: &[&str]) -> Option<usize> {
        names.iter().position(|name| self.has(name))
    }

    /// Removes and returns the next type.
    pub fn ty(&mut self) -> Lowering<Ty> {
        let found = self.unused().find_map(|(at, part)| Ty::parse(part).filter(|_| at < 64).map(|ty| (at, ty)));
        let Some((at, ty)) = found else { return refuse("a type is missing") };
        self.used |= 1 << at;
        Ok(ty)
    }

    /// Removes modifiers that are only hints.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            while self.has(name) {}
        }
    }

    pub fn ignore_prefix(&mut self, prefix: &str) {
        for at in 0..self.parts.len().min(64) {
            if self.parts[at].starts_with(prefix) {
                self.used |= 1 << at;
            }
        }
    }

    pub fn finish(&self) -> Lowering {
        match self.unused().next() {
            Some((_, part)) => refuse(format!("modifier .{part} is not supported")),
            None => Ok(()),
        }
    }
}

/// Returns the last type in the modifiers. It distinguishes integer forms from float forms.
pub fn last_type(instr: &Instr) -> Option<Ty> {
    instr.mods.iter().rev().find_map(|part| Ty::parse(part))
}

/// Returns operand `index`. Fails if the statement has fewer operands.
pub fn operand<'i, 'a>(instr: &'i Instr<'a>, index: usize) -> Lowering<&'i Operand<'a>> {
    match instr.operands.get(index) {
        Some(operand) => Ok(operand),
        None => refuse("an operand is missing"),
    }
}

/// Emits `d = exec(sources...)`. `result` and `sources` are the operands' types.
pub fn emit<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, exec: Exec, result: Ty, sources: &[Ty]) -> Lowering {
    if instr.operands.len() != sources.len() + 1 {
        return refuse("the number of operands is wrong");
    }
    let d = lower.dst(operand(instr, 0)?, result)?;
    let mut inst = Inst { d, ..Inst::new(exec) };
    for (index, &ty) in sources.iter().enumerate() {
        let source = lower.src(operand(instr, index + 1)?, ty)?;
        set_source(&mut inst, index, source);
    }
    lower.emit(inst);
    Ok(())
}

/// Sets source `index` of an instruction.
pub fn set_source(inst: &mut Inst, index: usize, source: u32) {
    match index {
        0 => inst.a = source,
        1 => inst.b = source,
        2 => inst.c = source,
        _ => inst.e = source,
    }
}

/// Returns the integer type of the same signedness with twice the width. Refuses all types except 16-bit and 32-bit
/// integers.
pub fn wider(ty: Ty) -> Lowering<Ty> {
    Ok(match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        Ty::S32 => Ty::S64,
        _ => return refuse("the type has no wider one"),
    })
}
