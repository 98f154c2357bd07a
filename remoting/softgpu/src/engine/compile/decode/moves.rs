//! Decoding of `mov`, `cvta`, `selp`, `slct` and `isspacep`.

use super::statement::{Mods, emit, operand};
use crate::engine::code::{Inst, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::engine::compile::lower::{Lower, Lowering, double, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::int::*;
use crate::engine::exec::memory::{IsSpace, space};
use crate::engine::exec::ops::{Bin, PredLogic, Select, Tri, Un};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "mov" => mov(lower, instr, mods)?,
        "cvta" => cvta(lower, instr, mods)?,
        "isspacep" => {
            let kind =
                match mods.one_of(&["global", "shared", "local", "param", "const", "shared::cta", "shared::cluster"]) {
                    Some(1 | 5 | 6) => space::SHARED,
                    Some(2) => space::LOCAL,
                    Some(3) => space::PARAM,
                    Some(_) => space::GLOBAL,
                    None => return refuse("a state space is missing"),
                };
            let d = lower.dst(operand(instr, 0)?, Ty::Pred)?;
            let a = lower.src(operand(instr, 1)?, Ty::U64)?;
            lower.emit(Inst { d, a, mods: kind, ..Inst::new(exec::<IsSpace>()) });
        }
        "selp" => {
            let ty = mods.ty()?;
            let exec = if double(ty) { exec::<Select<u64>>() } else { exec::<Select<u32>>() };
            let d = lower.dst(operand(instr, 0)?, ty)?;
            let [a, b] = [lower.src(operand(instr, 1)?, ty)?, lower.src(operand(instr, 2)?, ty)?];
            let c = lower.pred(operand(instr, 3)?)?;
            lower.emit(Inst { d, a, b, c, ..Inst::new(exec) });
        }
        "slct" => {
            mods.has("ftz");
            let (ty, by) = (mods.ty()?, mods.ty()?);
            let exec = match (double(ty), by) {
                (false, Ty::S32) => exec::<Tri<SlctS32>>(),
                (false, Ty::F32) => exec::<Tri<SlctF32>>(),
                (true, Ty::S32) => exec::<Tri<Slct64S32>>(),
                (true, Ty::F32) => exec::<Tri<Slct64F32>>(),
                _ => return refuse("the type is not supported"),
            };
            emit(lower, instr, exec, ty, &[ty, ty, by])?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn mov<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let ty = mods.ty()?;
    let (to, from) = (operand(instr, 0)?, operand(instr, 1)?);
    match (to, from) {
        (_, Operand::Vector(parts)) => pack(lower, ty, to, parts),
        (Operand::Vector(parts), _) => unpack(lower, ty, parts, from),
        _ if ty == Ty::Pred => {
            let d = lower.dst(to, ty)?;
            let a = lower.pred(from)?;
            lower.emit(Inst { d, a, ..Inst::new(exec::<PredLogic>()) });
            Ok(())
        }
        // Registers such as `%clock64` give as many bits as the destination has.
        _ => {
            let exec = if double(ty) { exec::<Un<Mov64>>() } else { exec::<Un<Mov32>>() };
            emit(lower, instr, exec, ty, &[ty])
        }
    }
}

/// Decodes `mov.b32 d, {a, b}` and similar forms. The first part is the least significant.
fn pack<'a>(lower: &mut Lower<'_, 'a>, ty: Ty, to: &Operand<'a>, parts: &[Operand<'a>]) -> Lowering {
    let d = lower.dst(to, ty)?;
    let part = if parts.len() * 4 == ty.bytes() as usize { Ty::B32 } else { Ty::B16 };
    let values = parts.iter().map(|part_| lower.src(part_, part)).collect::<Lowering<Vec<u32>>>()?;
    match (ty.bytes(), values.as_slice()) {
        (4, &[a, b]) => lower.emit(Inst { d, a, b, ..Inst::new(exec::<Bin<Pack16>>()) }),
        (8, &[a, b]) => lower.emit(Inst { d, a, b, ..Inst::new(exec::<Bin<Pack32>>()) }),
        (8, &[a, b, c, e]) => {
            let (low, high) = (lower.temp(Ty::B32), lower.temp(Ty::B32));
            lower.emit_free(Inst { d: low, a, b, ..Inst::new(exec::<Bin<Pack16>>()) });
            lower.emit_free(Inst { d: high, a: c, b: e, ..Inst::new(exec::<Bin<Pack16>>()) });
            lower.emit(Inst { d, a: low, b: high, ..Inst::new(exec::<Bin<Pack32>>()) });
        }
        (4, &[a, b, c, e]) => {
            // This is the form with four bytes.
            let (low, high) = (lower.temp(Ty::B32), lower.temp(Ty::B32));
            let selector = lower.number(0x40, Ty::B32);
            lower.emit_free(Inst { d: low, a, b, c: selector, ..Inst::new(exec::<Tri<Prmt>>()) });
            lower.emit_free(Inst { d: high, a: c, b: e, c: selector, ..Inst::new(exec::<Tri<Prmt>>()) });
            lower.emit(Inst { d, a: low, b: high, ..Inst::new(exec::<Bin<Pack16>>()) });
        }
        _ => return refuse("vectors of this form"),
    }
    Ok(())
}

/// Decodes `mov.b32 {a, b}, d` and similar forms.
fn unpack<'a>(lower: &mut Lower<'_, 'a>, ty: Ty, parts: &[Operand<'a>], from: &Operand<'a>) -> Lowering {
    let a = lower.src(from, ty)?;
    let part = if parts.len() * 4 == ty.bytes() as usize { Ty::B32 } else { Ty::B16 };
    // The source may also be a destination, so copy the parts to temporaries first.
    let mut moves = Vec::new();
    for (index, to) in parts.iter().enumerate().filter(|(_, to)| **to != Operand::Sink) {
        let d = lower.dst(to, part)?;
        let temp = lower.temp(part);
        match (ty.bytes(), parts.len(), index) {
            (4, 2, 0) => lower.emit_free(Inst { d: temp, a, ..Inst::new(exec::<Un<Low16>>()) }),
            (4, 2, 1) => lower.emit_free(Inst { d: temp, a, ..Inst::new(exec::<Un<High16>>()) }),
            (8, 2, 0) => lower.emit_free(Inst { d: temp, a, ..Inst::new(exec::<Un<Low32>>()) }),
            (8, 2, 1) => lower.emit_free(Inst { d: temp, a, ..Inst::new(exec::<Un<High32>>()) }),
            (8, 4, _) => {
                let b = lower.number(16 * index as u64, Ty::B32);
                lower.emit_free(Inst { d: temp, a, b, ..Inst::new(exec::<Bin<Shr16Of64>>()) });
            }
            (4, 4, _) => {
                let b = lower.number(8 * index as u64, Ty::B32);
                let c = lower.number(8, Ty::B32);
                lower.emit_free(Inst { d: temp, a, b, c, ..Inst::new(exec::<Tri<BfeU32>>()) });
            }
            _ => return refuse("vectors of this form"),
        }
        moves.push((d, temp));
    }
    for (d, temp) in moves {
        lower.emit(Inst { d, a: temp, ..Inst::new(exec::<Un<Mov32>>()) });
    }
    Ok(())
}

fn cvta<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let from_generic = mods.has("to");
    let names = ["global", "const", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry"];
    let window = match mods.one_of(&names) {
        Some(0 | 1) => 0,
        Some(2..=4) => SHARED_WINDOW,
        Some(5) => LOCAL_WINDOW,
        Some(_) => {
            if lower.entry {
                PARAM_WINDOW
            } else {
                LOCAL_WINDOW
            }
        }
        None => return refuse("a state space is missing"),
    };
    let ty = mods.ty()?;
    if !double(ty) {
        return refuse("32-bit generic addresses");
    }
    let d = lower.dst(operand(instr, 0)?, ty)?;
    let a = lower.src(operand(instr, 1)?, ty)?;
    if window == 0 {
        lower.emit(Inst { d, a, ..Inst::new(exec::<Un<Mov64>>()) });
        return Ok(());
    }
    let b = lower.number(window, ty);
    let exec = if from_generic { exec::<Bin<Sub64>>() } else { exec::<Bin<Add64>>() };
    lower.emit(Inst { d, a, b, ..Inst::new(exec) });
    Ok(())
}
