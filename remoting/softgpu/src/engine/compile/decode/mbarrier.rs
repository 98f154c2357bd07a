//! Decoding of `mbarrier` and of the bulk copies that report to a barrier. A cluster has one block, so all of them stay
//! within the block.

use super::memory::{ignore_hints, space_of};
use super::statement::{Mods, operand};
use crate::engine::code::{Inst, NONE};
use crate::engine::compile::allocate::Class;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::control::Nop;
use crate::engine::exec::exec;
use crate::engine::exec::int::{Add64, And32, Low32, ZeroExtend32};
use crate::engine::exec::mbarrier::{COUNT_MASK, CopyBulk, SOURCE_SHIFT, Test, Update, operation};
use crate::engine::exec::memory::space;
use crate::engine::exec::ops::{Bin, Un};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "mbarrier" => barrier(lower, instr, mods)?,
        "cp" if instr.mods.starts_with(&["async", "bulk"]) => bulk(lower, instr, mods)?,
        "cp" if instr.mods.starts_with(&["async", "mbarrier", "arrive"]) => arrive_after_copies(lower, instr, mods)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn barrier<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let names = [
        "init",
        "inval",
        "arrive",
        "arrive_drop",
        "expect_tx",
        "complete_tx",
        "test_wait",
        "try_wait",
        "pending_count",
    ];
    let Some(name) = mods.one_of(&names).map(|at| names[at]) else { return refuse("an operation is missing") };
    let space = space_of(mods);
    mods.ignore(&["b64", "noComplete", "release", "acquire", "relaxed", "cta", "cluster"]);
    match name {
        "pending_count" => {
            let state = lower.src(operand(instr, 1)?, Ty::B64)?;
            let d = lower.dst(operand(instr, 0)?, Ty::U32)?;
            let (low, counts) = (lower.temp(Ty::U32), lower.number(COUNT_MASK, Ty::U32));
            lower.emit_free(Inst { d: low, a: state, ..Inst::new(exec::<Un<Low32>>()) });
            lower.emit(Inst { d, a: low, b: counts, ..Inst::new(exec::<Bin<And32>>()) });
            Ok(())
        }
        // The program may use the memory for something else. There is no other state to remove.
        "inval" => {
            lower.emit(Inst::new(exec::<Nop>()));
            Ok(())
        }
        "test_wait" | "try_wait" => {
            let mut inst = Inst::new(exec::<Test>());
            inst.d2 = lower.dst(operand(instr, 0)?, Ty::Pred)?;
            lower.address(&mut inst, operand(instr, 1)?, space)?;
            if mods.has("parity") {
                inst.c = lower.src(operand(instr, 2)?, Ty::U32)?;
            } else {
                inst.b = lower.src(operand(instr, 2)?, Ty::B64)?;
            }
            lower.emit(inst);
            Ok(())
        }
        _ => update(lower, instr, mods, name, space),
    }
}

fn update<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods, name: &str, space: u32) -> Lowering {
    let arrives = name.starts_with("arrive");
    let expects = arrives && mods.has("expect_tx");
    let what = match name {
        "init" => operation::INIT,
        "arrive" => operation::ARRIVE,
        "arrive_drop" => operation::ARRIVE_DROP,
        "expect_tx" => operation::EXPECT,
        _ => operation::COMPLETE,
    };
    let mut inst = Inst { mods: what << operation::SHIFT, ..Inst::new(exec::<Update>()) };
    // An arrival at a barrier of another block in the cluster returns no state, and has no destination operand.
    let returns = arrives && !matches!(instr.operands.first(), Some(Operand::Address(..)));
    if returns && *operand(instr, 0)? != Operand::Sink {
        inst.d = lower.dst(operand(instr, 0)?, Ty::B64)?;
    }
    let first = usize::from(returns);
    lower.address(&mut inst, operand(instr, first)?, space)?;
    if let Some(number) = instr.operands.get(first + 1) {
        let number = lower.src(number, Ty::U32)?;
        if what == operation::INIT || arrives && !expects {
            inst.b = number;
        } else {
            inst.c = number;
        }
    }
    lower.emit(inst);
    Ok(())
}

/// Decodes `cp.async.mbarrier.arrive`. The copies before it are already done. Without `.noinc` it expects one more
/// arrival and makes this arrival, so nothing changes.
fn arrive_after_copies<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["async", "mbarrier", "arrive", "b64"]);
    let space = space_of(mods);
    if !mods.has("noinc") {
        lower.emit(Inst::new(exec::<Nop>()));
        return Ok(());
    }
    let mut inst = Inst { mods: operation::ARRIVE << operation::SHIFT, ..Inst::new(exec::<Update>()) };
    lower.address(&mut inst, operand(instr, 0)?, space)?;
    lower.emit(inst);
    Ok(())
}

/// Decodes `cp.async.bulk`. The copy is done at once, so groups of copies need no wait.
fn bulk<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["async", "bulk"]);
    if mods.one_of(&["commit_group", "wait_group", "prefetch"]).is_some() {
        if mods.has("tensor") {
            return refuse("tensor maps are not provided");
        }
        mods.ignore(&["read", "L2", "global"]);
        ignore_hints(mods);
        lower.emit(Inst::new(exec::<Nop>()));
        return Ok(());
    }
    let names: Vec<&str> = instr.mods[2..].iter().copied().filter(|part| !part.starts_with("L2::")).collect();
    let [to, from, completion] = names[..] else { return refuse("the form is not supported") };
    let space_of = |name: &str| match name {
        "global" => Ok(space::GLOBAL),
        "shared::cta" | "shared::cluster" => Ok(space::SHARED),
        _ => refuse("the space is not supported"),
    };
    let (to, from) = (space_of(to)?, space_of(from)?);
    let reports = match completion {
        "mbarrier::complete_tx::bytes" => true,
        "bulk_group" => false,
        _ => return refuse("the completion is not supported"),
    };
    mods.ignore(&names);
    ignore_hints(mods);
    let a = address(lower, operand(instr, 0)?)?;
    let b = address(lower, operand(instr, 1)?)?;
    let c = lower.src(operand(instr, 2)?, Ty::U32)?;
    let e = if reports { address(lower, operand(instr, 3)?)? } else { NONE };
    lower.emit(Inst { a, b, c, e, mods: to | from << SOURCE_SHIFT, ..Inst::new(exec::<CopyBulk>()) });
    Ok(())
}

/// Returns a 64-bit register with the address of an operand in its state space.
fn address<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>) -> Lowering<u32> {
    let Operand::Address(base, offset) = operand else { return refuse("an address is expected") };
    let base = match &**base {
        Operand::Reg(reg) if lower.class_of(*reg) == Class::Word => {
            let wide = lower.temp(Ty::U64);
            lower.emit_free(Inst { d: wide, a: *reg, ..Inst::new(exec::<Un<ZeroExtend32>>()) });
            wide
        }
        other => lower.src(other, Ty::U64)?,
    };
    if *offset == 0 {
        return Ok(base);
    }
    let (sum, offset) = (lower.temp(Ty::U64), lower.number(*offset as u64, Ty::U64));
    lower.emit_free(Inst { d: sum, a: base, b: offset, ..Inst::new(exec::<Bin<Add64>>()) });
    Ok(sum)
}
