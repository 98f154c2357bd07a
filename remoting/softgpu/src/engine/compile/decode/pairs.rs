//! Decoding of `.f32x2` arithmetic.

use super::float::rounding;
use super::statement::{Mods, operand, set_source};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::float::{Add, AddF32, FlushF32, Fma, FmaF32, Mul, MulF32, Sub, SubF32};
use crate::engine::exec::number::Mode;
use crate::engine::exec::ops::{Bin, Tri, Un};
use crate::engine::exec::pairs::{DirectedPair, Pair};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Instr;

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    if !matches!(instr.op, "add" | "sub" | "mul" | "fma") || !mods.has("f32x2") {
        return Ok(false);
    }
    let mode = rounding(mods);
    let flushes = mods.has("ftz");
    let (handler, sources) = match (instr.op, mode == Mode::Nearest) {
        ("add", true) => (exec::<Bin<Pair<AddF32>>>(), 2),
        ("sub", true) => (exec::<Bin<Pair<SubF32>>>(), 2),
        ("mul", true) => (exec::<Bin<Pair<MulF32>>>(), 2),
        (_, true) => (exec::<Tri<Pair<FmaF32>>>(), 3),
        ("add", false) => (exec::<DirectedPair<Add>>(), 2),
        ("sub", false) => (exec::<DirectedPair<Sub>>(), 2),
        ("mul", false) => (exec::<DirectedPair<Mul>>(), 2),
        (_, false) => (exec::<DirectedPair<Fma>>(), 3),
    };
    if instr.operands.len() != sources + 1 {
        return refuse("the number of operands is wrong");
    }
    let mut inst = Inst { mods: mode as u32, ..Inst::new(handler) };
    for index in 0..sources {
        let mut source = lower.src(operand(instr, index + 1)?, Ty::B64)?;
        if flushes {
            source = flush(lower, source);
        }
        set_source(&mut inst, index, source);
    }
    let d = lower.dst(operand(instr, 0)?, Ty::B64)?;
    if !flushes {
        lower.emit(Inst { d, ..inst });
        return Ok(true);
    }
    let exact = lower.temp(Ty::B64);
    lower.emit_free(Inst { d: exact, ..inst });
    lower.emit(Inst { d, a: exact, ..Inst::new(exec::<Un<Pair<FlushF32>>>()) });
    Ok(true)
}

/// Emits instructions that flush both halves of an operand, and returns the new register.
fn flush(lower: &mut Lower, source: u32) -> u32 {
    let temp = lower.temp(Ty::B64);
    lower.emit_free(Inst { d: temp, a: source, ..Inst::new(exec::<Un<Pair<FlushF32>>>()) });
    temp
}
