//! `atom` and `red`.

use super::memory::{ignore_hints, space_of};
use super::{Mods, operand};
use crate::engine::code::{Exec, Inst};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::atomics::{Atomic, Op};
use crate::engine::exec::exec;
use crate::engine::exec::memory::space;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    let returns = match instr.op {
        "atom" => true,
        "red" if !instr.mods.contains(&"async") => false,
        _ => return Ok(false),
    };
    ignore_hints(mods);
    let orders = ["acquire", "release", "acq_rel"];
    let ordered = if orders.iter().any(|name| instr.mods.contains(name)) { space::ORDERED } else { 0 };
    mods.ignore(&orders);
    mods.ignore(&["noftz"]);
    let state = space_of(mods);
    let names = ["exch", "cas", "add", "inc", "dec", "min", "max", "and", "or", "xor"];
    let Some(name) = mods.one_of(&names).map(|at| names[at]) else { return refuse("an operation is missing") };
    let ty = mods.ty()?;
    let op = operation(name, ty)?;
    let first = usize::from(returns);
    let handler: Exec = match ty.bytes() {
        2 => exec::<Atomic<u16>>(),
        4 => exec::<Atomic<u32>>(),
        8 => exec::<Atomic<u64>>(),
        _ => return refuse("the type is not supported"),
    };
    let mut inst = Inst { mods: (op as u32) << 8 | ordered, ..Inst::new(handler) };
    lower.address(&mut inst, operand(instr, first)?, state)?;
    inst.b = lower.src(operand(instr, first + 1)?, ty)?;
    if op == Op::CompareExchange {
        inst.c = lower.src(operand(instr, first + 2)?, ty)?;
    }
    if returns && *operand(instr, 0)? != Operand::Sink {
        inst.d = lower.dst(operand(instr, 0)?, ty)?;
    }
    lower.emit(inst);
    Ok(true)
}

fn operation(name: &str, ty: Ty) -> Lowering<Op> {
    let signed = ty.is_signed();
    Ok(match (name, ty) {
        ("exch", _) => Op::Exchange,
        ("cas", _) => Op::CompareExchange,
        ("add", Ty::F32 | Ty::F64) => Op::AddF,
        ("add", Ty::F16x2) => Op::AddF16x2,
        ("add", Ty::Bf16x2) => Op::AddBf16x2,
        ("add", Ty::F16) => Op::AddF16,
        ("add", Ty::Bf16) => Op::AddBf16,
        (_, ty) if ty.is_float() => return refuse("the type is not supported"),
        ("add", _) => Op::Add,
        ("inc", _) => Op::Inc,
        ("dec", _) => Op::Dec,
        ("min", _) if signed => Op::MinS,
        ("min", _) => Op::MinU,
        ("max", _) if signed => Op::MaxS,
        ("max", _) => Op::MaxU,
        ("and", _) => Op::And,
        ("or", _) => Op::Or,
        _ => Op::Xor,
    })
}
