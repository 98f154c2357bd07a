//! Decoding of `atom` and `red`.

use super::memory::{ignore_hints, space_of};
use super::statement::{Mods, operand};
use crate::engine::code::{Exec, Inst};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::atomics::{Atomic, Op};
use crate::engine::exec::exec;
use crate::engine::exec::int::Mov32;
use crate::engine::exec::memory::space;
use crate::engine::exec::ops::Un;
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
    let count = mods.one_of(&["v2", "v4", "v8"]).map(|at| 2 << at);
    let ty = mods.ty()?;
    let op = operation(name, ty, count)?;
    let handler: Exec = match ty.bytes() {
        2 => exec::<Atomic<u16>>(),
        4 => exec::<Atomic<u32>>(),
        8 => exec::<Atomic<u64>>(),
        _ => return refuse("the type is not supported"),
    };
    let first = usize::from(returns);
    let to = if returns && *operand(instr, 0)? != Operand::Sink { elements(operand(instr, 0)?, count)? } else { &[] };
    let mut sources = Vec::new();
    for source in elements(operand(instr, first + 1)?, count)? {
        let mut source = lower.src(source, ty)?;
        // A result may use the same register as a later source, so copy the sources first.
        if count.is_some() && !to.is_empty() {
            let d = lower.temp(ty);
            lower.emit_free(Inst { d, a: source, ..Inst::new(exec::<Un<Mov32>>()) });
            source = d;
        }
        sources.push(source);
    }
    // Each element of a vector is updated atomically, but not the vector as a whole.
    for (index, source) in sources.into_iter().enumerate() {
        let mut inst = Inst { b: source, mods: (op as u32) << 8 | ordered, ..Inst::new(handler) };
        lower.address(&mut inst, operand(instr, first)?, state)?;
        inst.imm = inst.imm.wrapping_add(index as i64 * i64::from(ty.bytes()));
        if op == Op::CompareExchange {
            inst.c = lower.src(operand(instr, first + 2)?, ty)?;
        }
        if let Some(to) = to.get(index).filter(|to| **to != Operand::Sink) {
            inst.d = lower.dst(to, ty)?;
        }
        lower.emit(inst);
    }
    Ok(true)
}

/// Returns the elements of a vector with `count` elements, or the operand itself if the instruction is not on vectors.
fn elements<'i, 'a>(operand: &'i Operand<'a>, count: Option<usize>) -> Lowering<&'i [Operand<'a>]> {
    match (operand, count) {
        (Operand::Vector(list), Some(count)) if list.len() == count => Ok(list),
        (operand, None) => Ok(std::slice::from_ref(operand)),
        _ => refuse("a vector of another length is expected"),
    }
}

fn operation(name: &str, ty: Ty, count: Option<usize>) -> Lowering<Op> {
    let signed = ty.is_signed();
    // A vector has at most 16 bytes, and only some types exist.
    if count.is_some_and(|count| !ty.is_float() || ty == Ty::F64 || count * ty.bytes() as usize > 16) {
        return refuse("there is no such vector");
    }
    Ok(match (name, ty) {
        ("exch", _) => Op::Exchange,
        ("cas", _) => Op::CompareExchange,
        ("add", Ty::F32 | Ty::F64) => Op::AddF,
        ("add", Ty::F16x2) => Op::AddF16x2,
        ("add", Ty::Bf16x2) => Op::AddBf16x2,
        ("add", Ty::F16) => Op::AddF16,
        ("add", Ty::Bf16) => Op::AddBf16,
        ("min", Ty::F16x2) if count.is_some() => Op::MinF16x2,
        ("max", Ty::F16x2) if count.is_some() => Op::MaxF16x2,
        ("min", Ty::Bf16x2) if count.is_some() => Op::MinBf16x2,
        ("max", Ty::Bf16x2) if count.is_some() => Op::MaxBf16x2,
        ("min", Ty::F16) if count.is_some() => Op::MinF16,
        ("max", Ty::F16) if count.is_some() => Op::MaxF16,
        ("min", Ty::Bf16) if count.is_some() => Op::MinBf16,
        ("max", Ty::Bf16) if count.is_some() => Op::MaxBf16,
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
