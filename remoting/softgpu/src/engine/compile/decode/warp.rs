//! Decoding of operations between lanes, and of barriers.

use super::statement::{Mods, operand};
use crate::engine::code::{Inst, NONE};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::barrier::{Bar, kind};
use crate::engine::exec::collective::*;
use crate::engine::exec::exec;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "shfl" => shfl(lower, instr, mods)?,
        "vote" => vote_(lower, instr, mods)?,
        "activemask" => {
            mods.has("b32");
            let d = lower.dst(operand(instr, 0)?, Ty::B32)?;
            let mods = operation::VOTE | vote::ACTIVE << operation::SHIFT;
            lower.emit(Inst { d, mods, ..Inst::new(exec::<Sync<Vote>>()) });
        }
        "match" => {
            let all = mods.one_of(&["any", "all"]) == Some(1);
            mods.has("sync");
            let ty = mods.ty()?;
            let (d, d2) = result_and_predicate(lower, operand(instr, 0)?)?;
            let a = lower.src(operand(instr, 1)?, ty)?;
            let e = lower.src(operand(instr, 2)?, Ty::B32)?;
            let variant = u32::from(all) | u32::from(ty.bytes() == 8) << 1;
            let mods = operation::MATCH | variant << operation::SHIFT;
            lower.emit(Inst { d, d2, a, e, mods, ..Inst::new(exec::<Sync<Match>>()) });
        }
        "redux" => {
            mods.has("sync");
            let names = ["add", "min", "max", "and", "or", "xor"];
            let Some(name) = mods.one_of(&names).map(|at| names[at]) else { return refuse("an operation is missing") };
            let ty = mods.ty()?;
            let variant = match (name, ty) {
                (_, Ty::F32) => return refuse("the type is not supported"),
                ("add", _) => reduce::ADD,
                ("min", Ty::S32) => reduce::MIN_S,
                ("min", _) => reduce::MIN_U,
                ("max", Ty::S32) => reduce::MAX_S,
                ("max", _) => reduce::MAX_U,
                ("and", _) => reduce::AND,
                ("or", _) => reduce::OR,
                _ => reduce::XOR,
            };
            let d = lower.dst(operand(instr, 0)?, ty)?;
            let a = lower.src(operand(instr, 1)?, ty)?;
            let e = lower.src(operand(instr, 2)?, Ty::B32)?;
            let mods = operation::REDUCE | variant << operation::SHIFT;
            lower.emit(Inst { d, a, e, mods, ..Inst::new(exec::<Sync<Reduce>>()) });
        }
        "bar" if mods.has("warp") => {
            mods.has("sync");
            let e = lower.src(operand(instr, 0)?, Ty::B32)?;
            lower.emit(Inst { e, mods: operation::BARRIER, ..Inst::new(exec::<Sync<WarpBarrier>>()) });
        }
        "bar" | "barrier" => barrier(lower, instr, mods)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the registers of an operand `d|p`. Either part may be absent.
fn result_and_predicate<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>) -> Lowering<(u32, u32)> {
    match operand {
        Operand::Pair(d, p) => {
            let d = lower.dst(d, Ty::B32)?;
            let p = if **p == Operand::Sink { NONE } else { lower.dst(p, Ty::Pred)? };
            Ok((d, p))
        }
        single => Ok((lower.dst(single, Ty::B32)?, NONE)),
    }
}

fn shfl<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let sync = mods.has("sync");
    let Some(variant) = mods.one_of(&["up", "down", "bfly", "idx"]) else { return refuse("a mode is missing") };
    mods.ty()?;
    let (d, d2) = result_and_predicate(lower, operand(instr, 0)?)?;
    let a = lower.src(operand(instr, 1)?, Ty::B32)?;
    let b = lower.src(operand(instr, 2)?, Ty::B32)?;
    let c = lower.src(operand(instr, 3)?, Ty::B32)?;
    let e = if sync { lower.src(operand(instr, 4)?, Ty::B32)? } else { NONE };
    let mods = operation::SHUFFLE | (variant as u32) << operation::SHIFT;
    lower.emit(Inst { d, d2, a, b, c, e, mods, ..Inst::new(exec::<Sync<Shuffle>>()) });
    Ok(())
}

fn vote_<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let sync = mods.has("sync");
    let Some(variant) = mods.one_of(&["all", "any", "uni", "ballot"]) else { return refuse("a mode is missing") };
    let variant = variant as u32;
    mods.ty()?;
    let to = operand(instr, 0)?;
    let (d, d2) =
        if variant == vote::BALLOT { (lower.dst(to, Ty::B32)?, NONE) } else { (NONE, lower.dst(to, Ty::Pred)?) };
    let c = lower.pred(operand(instr, 1)?)?;
    let e = if sync { lower.src(operand(instr, 2)?, Ty::B32)? } else { NONE };
    let mods = operation::VOTE | variant << operation::SHIFT;
    lower.emit(Inst { d, d2, c, e, mods, ..Inst::new(exec::<Sync<Vote>>()) });
    Ok(())
}

fn barrier<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["cta", "aligned"]);
    let Some(form) = mods.one_of(&["sync", "arrive", "red"]) else { return refuse("a form is missing") };
    lower.barriers = true;
    let mut inst = Inst { mods: kind::SYNC, ..Inst::new(exec::<Bar>()) };
    let mut operands = instr.operands.as_slice();
    if form == 1 {
        inst.mods = kind::ARRIVE;
    }
    if form == 2 {
        let Some(what) = mods.one_of(&["popc", "and", "or"]) else { return refuse("a reduction is missing") };
        mods.ty()?;
        inst.mods = [kind::POPC, kind::AND, kind::OR][what];
        let [to, rest @ .., truth] = operands else { return refuse("an operand is missing") };
        if inst.mods == kind::POPC {
            inst.d = lower.dst(to, Ty::U32)?;
        } else {
            inst.d2 = lower.dst(to, Ty::Pred)?;
        }
        inst.c = lower.pred(truth)?;
        operands = rest;
    }
    let [number, count @ ..] = operands else { return refuse("the barrier is missing") };
    inst.a = lower.src(number, Ty::U32)?;
    if let Some(count) = count.first() {
        inst.b = lower.src(count, Ty::U32)?;
    }
    lower.emit(inst);
    Ok(())
}
