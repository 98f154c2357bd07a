//! Conversion of operands: registers, constants and addresses.

use super::builder::{Lower, Lowering, Place, class, double, refuse};
use crate::engine::code::{Inst, List, NONE, NOT, Target};
use crate::engine::compile::allocate::Class;
use crate::engine::compile::names::Symbol;
use crate::engine::exec::memory::space;
use crate::engine::exec::special::{DynamicSharedAddress, LocalAddress, ReadSpecial, Special};
use crate::engine::exec::{exec, int, ops};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Operand;

impl<'a> Lower<'_, 'a> {
    /// Returns a constant operand with the type's width.
    pub fn number(&mut self, bits: u64, ty: Ty) -> u32 {
        self.pool.number(bits, double(ty))
    }

    /// Returns a source operand of the given type.
    pub fn src(&mut self, operand: &Operand<'a>, ty: Ty) -> Lowering<u32> {
        match operand {
            Operand::Reg(reg) => match (self.class_of(*reg), class(ty)) {
                (have, want) if have == want => Ok(*reg),
                (Class::Double, Class::Word) => {
                    let temp = self.temp(Ty::B32);
                    self.emit_free(Inst { d: temp, a: *reg, ..Inst::new(exec::<ops::Un<int::Low32>>()) });
                    Ok(temp)
                }
                _ => refuse("an operand's register does not fit the type"),
            },
            Operand::Int(value) => Ok(self.number(*value as u64, ty)),
            Operand::F32(bits) => {
                let value = f32::from_bits(*bits);
                let bits = if ty == Ty::F64 { f64::from(value).to_bits() } else { u64::from(*bits) };
                Ok(self.number(bits, ty))
            }
            Operand::F64(bits) => {
                let value = f64::from_bits(*bits);
                let bits = if ty == Ty::F32 { u64::from((value as f32).to_bits()) } else { *bits };
                Ok(self.number(bits, ty))
            }
            Operand::Special(name, part) => {
                let Some(special) = Special::parse(name, part) else {
                    return refuse(format!("special register {name}.{part}"));
                };
                self.clusters |= name.contains("cluster");
                let temp = self.temp(ty);
                let inst = Inst::new(exec::<ReadSpecial>());
                self.emit_free(Inst { d: temp, mods: special as u32, imm: double(ty).into(), ..inst });
                Ok(temp)
            }
            Operand::Var(_) | Operand::Symbol(_) => self.address_value(operand, 0, ty),
            Operand::Address(base, offset) => self.address_value(base, *offset, ty),
            _ => refuse("an operand of another kind is expected"),
        }
    }

    /// Returns an operand with the address of a variable as its value.
    fn address_value(&mut self, base: &Operand<'a>, offset: i64, ty: Ty) -> Lowering<u32> {
        let (operand, extra, _) = self.base(base, ty)?;
        let extra = extra.wrapping_add(offset);
        if operand == NONE {
            return Ok(self.number(extra as u64, ty));
        }
        if extra == 0 {
            return Ok(operand);
        }
        let number = self.number(extra as u64, ty);
        let temp = self.temp(ty);
        let add = if double(ty) { exec::<ops::Bin<int::Add64>>() } else { exec::<ops::Bin<int::Add32>>() };
        self.emit_free(Inst { d: temp, a: operand, b: number, ..Inst::new(add) });
        Ok(temp)
    }

    /// Returns the parts of an address: the operand (or `NONE`), a constant offset, and the state space that the name
    /// implies.
    fn base(&mut self, base: &Operand<'a>, ty: Ty) -> Lowering<(u32, i64, u32)> {
        match base {
            Operand::Var(var) => match self.place(*var) {
                Place::Param(offset) => Ok((NONE, offset.into(), space::PARAM)),
                Place::Shared(offset) => Ok((NONE, offset.into(), space::SHARED)),
                Place::DynamicShared => Ok((self.dynamic_shared(ty), 0, space::SHARED)),
                Place::Local(offset) => {
                    let temp = self.temp(ty);
                    let inst = Inst::new(exec::<LocalAddress>());
                    self.emit_free(Inst { d: temp, mods: offset, imm: double(ty).into(), ..inst });
                    Ok((temp, 0, space::LOCAL))
                }
                Place::Nowhere => refuse("a variable of this space inside a function"),
            },
            Operand::Symbol(name) => match self.linker.resolve(self.unit, name) {
                Some(Symbol::Global(index)) if double(ty) => {
                    Ok((self.pool.address(Target::Global(index), 0), 0, space::GLOBAL))
                }
                Some(Symbol::Function(index)) if double(ty) => {
                    self.edges.insert(index);
                    Ok((self.pool.address(Target::Function(index), 0), 0, space::GENERIC))
                }
                Some(Symbol::Shared(offset)) => Ok((NONE, offset.into(), space::SHARED)),
                Some(Symbol::DynamicShared) => Ok((self.dynamic_shared(ty), 0, space::SHARED)),
                Some(_) => refuse(format!("'{name}' does not fit the type")),
                None => refuse(format!("'{name}' is not defined")),
            },
            Operand::Int(value) => Ok((NONE, *value, space::GENERIC)),
            _ => refuse("an address of another form is expected"),
        }
    }

    fn dynamic_shared(&mut self, ty: Ty) -> u32 {
        let temp = self.temp(ty);
        let inst = Inst::new(exec::<DynamicSharedAddress>());
        self.emit_free(Inst { d: temp, imm: double(ty).into(), ..inst });
        temp
    }

    /// Sets `a`, `imm` and the state space bits of `mods` in a memory instruction.
    pub fn address(&mut self, inst: &mut Inst, operand: &Operand<'a>, space: u32) -> Lowering {
        let (base, offset) = match operand {
            Operand::Address(base, offset) => (&**base, *offset),
            // In old PTX, braces around a variable's name may be missing.
            Operand::Var(_) | Operand::Symbol(_) => (operand, 0),
            _ => return refuse("an address is expected"),
        };
        inst.imm = offset;
        inst.mods |= space;
        match base {
            Operand::Reg(reg) => {
                inst.a = *reg;
                match self.class_of(*reg) {
                    Class::Word => inst.mods |= space::NARROW,
                    Class::Double => {}
                    Class::Pred | Class::Wide => return refuse("a register of this type is not an address"),
                }
                // The parameters of a device function are in local memory.
                if space == space::PARAM && !self.entry {
                    inst.mods = inst.mods & !space::MASK | space::LOCAL;
                }
            }
            _ => {
                let (operand, extra, implied) = self.base(base, Ty::B64)?;
                inst.a = operand;
                inst.imm = offset.wrapping_add(extra);
                if space == space::GENERIC || space == space::PARAM {
                    inst.mods = inst.mods & !space::MASK | implied;
                }
            }
        }
        Ok(())
    }

    /// Returns a destination register of the given type. `_` gives a register that is never read.
    pub fn dst(&mut self, operand: &Operand<'a>, ty: Ty) -> Lowering<u32> {
        match operand {
            Operand::Reg(reg) if self.class_of(*reg) == class(ty) => Ok(*reg),
            Operand::Sink => Ok(self.temp(ty)),
            _ => refuse("the destination does not fit the type"),
        }
    }

    /// Returns the halves of a 128-bit source.
    pub fn wide(&mut self, operand: &Operand<'a>) -> Lowering<[u32; 2]> {
        let operand = match operand {
            Operand::Vector(list) if list.len() == 1 => &list[0],
            other => other,
        };
        match operand {
            Operand::Reg(reg) if self.class_of(*reg) == Class::Wide => {
                if let Some(&halves) = self.halves.get(reg) {
                    return Ok(halves);
                }
                let halves = [self.temp(Ty::B64), self.temp(Ty::B64)];
                self.halves.insert(*reg, halves);
                Ok(halves)
            }
            _ => refuse("a 128-bit register is expected"),
        }
    }

    /// Returns the halves of a 128-bit destination.
    pub fn wide_dst(&mut self, operand: &Operand<'a>) -> Lowering<[u32; 2]> {
        match operand {
            Operand::Sink => Ok([self.temp(Ty::B64), self.temp(Ty::B64)]),
            _ => self.wide(operand),
        }
    }

    /// Returns a predicate source, which may be negated.
    pub fn pred(&mut self, operand: &Operand<'a>) -> Lowering<u32> {
        match operand {
            Operand::Reg(reg) if self.class_of(*reg) == Class::Pred => Ok(*reg),
            Operand::Not(inner) => Ok(self.pred(inner)? ^ NOT),
            Operand::Int(value) => {
                let temp = self.temp(Ty::Pred);
                let inst = Inst::new(exec::<ops::PredLogic>());
                self.emit_free(Inst { d: temp, mods: 5, imm: i64::from(*value != 0), ..inst });
                Ok(temp)
            }
            _ => refuse("a predicate is expected"),
        }
    }

    /// Adds registers to the lists, and returns their part.
    pub fn list(&mut self, registers: &[u32]) -> List {
        let start = self.lists.len() as u32;
        self.lists.extend_from_slice(registers);
        List { start, len: registers.len() as u32 }
    }
}
