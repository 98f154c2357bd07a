//! Decoding of f32 and f64 arithmetic. `.ftz` adds flush instructions around the operation, and `.sat` adds a clamp
//! after it.

use super::statement::{Mods, emit, last_type, operand, set_source};
use crate::engine::code::{Exec, Inst};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::float::*;
use crate::engine::exec::number::Mode;
use crate::engine::exec::ops::{Bin, SlowUn, Tri, Un};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Instr;

/// Returns the rounding mode in the modifiers, or round to nearest if there is none.
pub fn rounding(mods: &mut Mods) -> Mode {
    match mods.one_of(&["rn", "rz", "rm", "rp"]) {
        Some(1) => Mode::Zero,
        Some(2) => Mode::Down,
        Some(3) => Mode::Up,
        _ => Mode::Nearest,
    }
}

/// Emits an instruction that flushes an f32 operand, and returns the new register.
pub fn flush(lower: &mut Lower, source: u32) -> u32 {
    let temp = lower.temp(Ty::F32);
    lower.emit_free(Inst { d: temp, a: source, ..Inst::new(exec::<Un<FlushF32>>()) });
    temp
}

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    if instr.op == "copysign" {
        let ty = mods.ty()?;
        let exec = if ty == Ty::F64 { exec::<Bin<CopysignF64>>() } else { exec::<Bin<CopysignF32>>() };
        emit(lower, instr, exec, ty, &[ty, ty])?;
        return Ok(true);
    }
    let Some(ty @ (Ty::F32 | Ty::F64)) = last_type(instr) else { return Ok(false) };
    if matches!(instr.op, "atom" | "red" | "mma" | "wmma" | "redux") {
        return Ok(false);
    }
    mods.ty()?;
    let mode = rounding(mods);
    let flushes = mods.has("ftz");
    let saturates = mods.has("sat");
    let (operation, sources) = handler(instr.op, ty, mode, mods)?;
    if instr.operands.len() != sources + 1 {
        return refuse("the number of operands is wrong");
    }
    let mut inst = Inst { mods: mode as u32, ..Inst::new(operation) };
    for index in 0..sources {
        let mut source = lower.src(operand(instr, index + 1)?, ty)?;
        if flushes && ty == Ty::F32 {
            source = flush(lower, source);
        }
        set_source(&mut inst, index, source);
    }
    let d = lower.dst(operand(instr, 0)?, ty)?;
    if instr.op == "rcp" && mode != Mode::Nearest {
        let one = if ty == Ty::F64 { 1f64.to_bits() } else { 1f32.to_bits().into() };
        (inst.a, inst.b) = (lower.number(one, ty), inst.a);
    }
    let mut after: Vec<Exec> = Vec::new();
    if flushes && ty == Ty::F32 {
        after.push(exec::<Un<FlushF32>>());
    }
    if saturates {
        after.push(if ty == Ty::F64 { exec::<Un<SaturateF64>>() } else { exec::<Un<SaturateF32>>() });
    }
    let Some(last) = after.pop() else {
        inst.d = d;
        lower.emit(inst);
        return Ok(true);
    };
    inst.d = lower.temp(ty);
    let mut value = inst.d;
    lower.emit_free(inst);
    for exec in after {
        let temp = lower.temp(ty);
        lower.emit_free(Inst { d: temp, a: value, ..Inst::new(exec) });
        value = temp;
    }
    lower.emit(Inst { d, a: value, ..Inst::new(last) });
    Ok(true)
}

/// Returns the handler of an operation and the number of its sources.
fn handler(op: &str, ty: Ty, mode: Mode, mods: &mut Mods) -> Lowering<(Exec, usize)> {
    let nearest = mode == Mode::Nearest;
    let wide = ty == Ty::F64;
    let approximate = mods.one_of(&["approx", "full"]);
    Ok(match (op, wide) {
        ("add", false) if nearest => (exec::<Bin<AddF32>>(), 2),
        ("add", true) if nearest => (exec::<Bin<AddF64>>(), 2),
        ("add", false) => (exec::<DirectedF32<Add>>(), 2),
        ("add", true) => (exec::<DirectedF64<Add>>(), 2),
        ("sub", false) if nearest => (exec::<Bin<SubF32>>(), 2),
        ("sub", true) if nearest => (exec::<Bin<SubF64>>(), 2),
        ("sub", false) => (exec::<DirectedF32<Sub>>(), 2),
        ("sub", true) => (exec::<DirectedF64<Sub>>(), 2),
        ("mul", false) if nearest => (exec::<Bin<MulF32>>(), 2),
        ("mul", true) if nearest => (exec::<Bin<MulF64>>(), 2),
        ("mul", false) => (exec::<DirectedF32<Mul>>(), 2),
        ("mul", true) => (exec::<DirectedF64<Mul>>(), 2),
        ("fma" | "mad", false) if nearest => (exec::<Tri<FmaF32>>(), 3),
        ("fma" | "mad", true) if nearest => (exec::<Tri<FmaF64>>(), 3),
        ("fma" | "mad", false) => (exec::<DirectedF32<Fma>>(), 3),
        ("fma" | "mad", true) => (exec::<DirectedF64<Fma>>(), 3),
        ("div", false) if approximate == Some(0) => (exec::<Bin<DivApproxF32>>(), 2),
        ("div", false) if nearest => (exec::<Bin<DivF32>>(), 2),
        ("div", true) if nearest => (exec::<Bin<DivF64>>(), 2),
        ("div" | "rcp", false) if !nearest => (exec::<DirectedF32<Div>>(), if op == "div" { 2 } else { 1 }),
        ("div" | "rcp", true) if !nearest => (exec::<DirectedF64<Div>>(), if op == "div" { 2 } else { 1 }),
        ("rcp", false) => (exec::<Un<RcpF32>>(), 1),
        ("rcp", true) => (exec::<Un<RcpF64>>(), 1),
        ("sqrt", false) if nearest => (exec::<Un<SqrtF32>>(), 1),
        ("sqrt", true) if nearest => (exec::<Un<SqrtF64>>(), 1),
        ("sqrt", false) => (exec::<DirectedF32<Sqrt>>(), 1),
        ("sqrt", true) => (exec::<DirectedF64<Sqrt>>(), 1),
        ("rsqrt", false) => (exec::<Un<RsqrtF32>>(), 1),
        ("rsqrt", true) => (exec::<Un<RsqrtF64>>(), 1),
        ("sin", false) => (exec::<SlowUn<SinF32>>(), 1),
        ("cos", false) => (exec::<SlowUn<CosF32>>(), 1),
        ("lg2", false) => (exec::<SlowUn<Lg2F32>>(), 1),
        ("ex2", false) => (exec::<SlowUn<Ex2F32>>(), 1),
        ("tanh", false) => (exec::<SlowUn<TanhF32>>(), 1),
        ("abs", false) => (exec::<Un<AbsF32>>(), 1),
        ("abs", true) => (exec::<Un<AbsF64>>(), 1),
        ("neg", false) => (exec::<Un<NegF32>>(), 1),
        ("neg", true) => (exec::<Un<NegF64>>(), 1),
        ("min" | "max", false) => {
            let least = op == "min";
            match (mods.has("NaN"), mods.has("xorsign") && mods.has("abs")) {
                (false, false) => (if least { exec::<Bin<MinF32>>() } else { exec::<Bin<MaxF32>>() }, 2),
                (true, false) => (if least { exec::<Bin<MinNanF32>>() } else { exec::<Bin<MaxNanF32>>() }, 2),
                (false, true) => (if least { exec::<Bin<MinXorF32>>() } else { exec::<Bin<MaxXorF32>>() }, 2),
                _ => return refuse("NaN with xorsign"),
            }
        }
        ("min", true) => (exec::<Bin<MinF64>>(), 2),
        ("max", true) => (exec::<Bin<MaxF64>>(), 2),
        _ => return refuse("the instruction is not supported"),
    })
}
