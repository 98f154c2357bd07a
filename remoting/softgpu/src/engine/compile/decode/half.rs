//! Decoding of 16-bit float arithmetic.

use super::statement::{Mods, last_type, operand, set_source};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::convert::{Bf16ToF32, F16ToF32};
use crate::engine::exec::exec;
use crate::engine::exec::half::{Half, Op, flag};
use crate::engine::exec::ops::Un;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Instr;

/// Emits a conversion of a 16-bit float operand to f32, and returns the new register.
pub fn widen(lower: &mut Lower, source: u32, ty: Ty) -> u32 {
    let temp = lower.temp(Ty::F32);
    let exec = if ty == Ty::Bf16 { exec::<Un<Bf16ToF32>>() } else { exec::<Un<F16ToF32>>() };
    lower.emit_free(Inst { d: temp, a: source, ..Inst::new(exec) });
    temp
}

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    let Some(ty @ (Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2)) = last_type(instr) else { return Ok(false) };
    let (op, sources) = match instr.op {
        "add" => (Op::Add, 2),
        "sub" => (Op::Sub, 2),
        "mul" => (Op::Mul, 2),
        "fma" => (Op::Fma, 3),
        "neg" => (Op::Neg, 1),
        "abs" => (Op::Abs, 1),
        "min" if mods.has("NaN") => (Op::MinNan, 2),
        "max" if mods.has("NaN") => (Op::MaxNan, 2),
        "min" => (Op::Min, 2),
        "max" => (Op::Max, 2),
        "ex2" => (Op::Ex2, 1),
        "tanh" => (Op::Tanh, 1),
        _ => return Ok(false),
    };
    mods.ty()?;
    mods.ignore(&["rn", "approx"]);
    let mut flags = op as u32;
    for (name, flag) in [("sat", flag::SATURATE), ("relu", flag::RELU), ("ftz", flag::FLUSH)] {
        if mods.has(name) {
            flags |= flag;
        }
    }
    if matches!(ty, Ty::Bf16 | Ty::Bf16x2) {
        flags |= flag::BF16;
    }
    if matches!(ty, Ty::F16x2 | Ty::Bf16x2) {
        flags |= flag::PACKED;
    }
    if instr.operands.len() != sources + 1 {
        return refuse("the number of operands is wrong");
    }
    let d = lower.dst(operand(instr, 0)?, ty)?;
    let mut inst = Inst { d, mods: flags, ..Inst::new(exec::<Half>()) };
    for index in 0..sources {
        let source = lower.src(operand(instr, index + 1)?, ty)?;
        set_source(&mut inst, index, source);
    }
    lower.emit(inst);
    Ok(true)
}
