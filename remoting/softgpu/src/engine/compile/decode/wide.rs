//! Decoding of `.b128` forms (ISA 5.2.1): `mov`, `ld`, `ldu`, `st`, `atom.exch` and `atom.cas`. A 128-bit register is a
//! pair of 64-bit registers.

use super::memory::{ignore_hints, ordering, space_of};
use super::statement::{Mods, operand};
use crate::engine::code::{Exec, Inst, NONE};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::atomics::{AtomicWide, Op};
use crate::engine::exec::exec;
use crate::engine::exec::int::{High32, Low32, Mov32, Mov64, Pack32};
use crate::engine::exec::memory::{B64, LoadParam, space};
use crate::engine::exec::ops::{Bin, Un};
use crate::engine::exec::whole::{LoadWhole, StoreWhole};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    if !mods.has("b128") {
        return Ok(false);
    }
    match instr.op {
        "mov" => mov(lower, instr)?,
        "ld" | "ldu" | "st" => access(lower, instr, mods)?,
        "atom" => atomic(lower, instr, mods)?,
        _ => return refuse(".b128 goes with mov, ld, ldu, st, atom.exch and atom.cas only"),
    }
    Ok(true)
}

fn mov<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>) -> Lowering {
    let [to, from] = instr.operands.as_slice() else { return refuse("the number of operands is wrong") };
    match (to, from) {
        (Operand::Vector(parts), _) => unpack(lower, parts, from),
        (_, Operand::Vector(parts)) => pack(lower, to, parts),
        _ => {
            let (to, from) = (lower.wide_dst(to)?, lower.wide(from)?);
            for (d, a) in to.into_iter().zip(from) {
                lower.emit(Inst { d, a, ..Inst::new(exec::<Un<Mov64>>()) });
            }
            Ok(())
        }
    }
}

/// Decodes `mov.b128 d, {a, b}` with two parts of 64 bits or four parts of 32 bits.
fn pack<'a>(lower: &mut Lower<'_, 'a>, to: &Operand<'a>, parts: &[Operand<'a>]) -> Lowering {
    let to = lower.wide_dst(to)?;
    match parts {
        [_, _] => {
            for (d, part) in to.into_iter().zip(parts) {
                let a = lower.src(part, Ty::B64)?;
                lower.emit(Inst { d, a, ..Inst::new(exec::<Un<Mov64>>()) });
            }
        }
        [_, _, _, _] => {
            for (d, part) in to.into_iter().zip(parts.chunks_exact(2)) {
                let [a, b] = [lower.src(&part[0], Ty::B32)?, lower.src(&part[1], Ty::B32)?];
                lower.emit(Inst { d, a, b, ..Inst::new(exec::<Bin<Pack32>>()) });
            }
        }
        _ => return refuse("vectors of this form"),
    }
    Ok(())
}

fn unpack<'a>(lower: &mut Lower<'_, 'a>, parts: &[Operand<'a>], from: &Operand<'a>) -> Lowering {
    let from = lower.wide(from)?;
    let (ty, forms): (Ty, &[Exec]) = match parts.len() {
        2 => (Ty::B64, &[exec::<Un<Mov64>>()]),
        4 => (Ty::B32, &[exec::<Un<Low32>>(), exec::<Un<High32>>()]),
        _ => return refuse("vectors of this form"),
    };
    for (index, part) in parts.iter().enumerate().filter(|(_, part)| **part != Operand::Sink) {
        let d = lower.dst(part, ty)?;
        let a = from[index / forms.len()];
        lower.emit(Inst { d, a, ..Inst::new(forms[index % forms.len()]) });
    }
    Ok(())
}

/// Decodes a load or store of all 16 bytes at once.
fn access<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let load = instr.op != "st";
    ignore_hints(mods);
    let mut inst = Inst { mods: ordering(mods), ..Inst::new(exec::<Un<Mov32>>()) };
    let state = space_of(mods);
    let (value, address) = if load { (0, 1) } else { (1, 0) };
    lower.address(&mut inst, operand(instr, address)?, state)?;
    let value = operand(instr, value)?;
    let fixed = inst.a == NONE && inst.mods & space::MASK == space::PARAM && inst.imm >= 0;
    if load {
        let targets = lower.wide_dst(value)?;
        inst.targets = lower.list(&targets);
        inst.exec = if fixed { exec::<LoadParam<B64>>() } else { exec::<LoadWhole<B64>>() };
    } else {
        let sources = lower.wide(value)?;
        inst.sources = lower.list(&sources);
        inst.exec = exec::<StoreWhole<B64>>();
    }
    lower.emit(inst);
    Ok(())
}

fn atomic<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    if !is_x86_feature_detected!("cmpxchg16b") {
        return refuse("this machine's processor has no compare and exchange of 16 bytes");
    }
    ignore_hints(mods);
    mods.ignore(&["acquire", "release", "acq_rel"]);
    let state = space_of(mods);
    let (op, count) = match mods.one_of(&["exch", "cas"]) {
        Some(0) => (Op::Exchange, 1),
        Some(_) => (Op::CompareExchange, 2),
        None => return refuse(".b128 goes with atom.exch and atom.cas only"),
    };
    let mut inst = Inst { mods: (op as u32) << 8, ..Inst::new(exec::<AtomicWide>()) };
    lower.address(&mut inst, operand(instr, 1)?, state)?;
    let mut sources = Vec::with_capacity(2 * count);
    for index in 0..count {
        sources.extend(lower.wide(operand(instr, 2 + index)?)?);
    }
    inst.sources = lower.list(&sources);
    if *operand(instr, 0)? != Operand::Sink {
        let targets = lower.wide_dst(operand(instr, 0)?)?;
        inst.targets = lower.list(&targets);
    }
    lower.emit(inst);
    Ok(())
}
