//! Decoding of `cvt` and its packed forms.

use super::statement::{Mods, operand};
use crate::engine::code::{Exec, Inst, NONE};
use crate::engine::compile::allocate::Class;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::convert::*;
use crate::engine::exec::exec;
use crate::engine::exec::fp8::{self, FromFp8, ToFp8};
use crate::engine::exec::int::*;
use crate::engine::exec::number::Mode;
use crate::engine::exec::ops::{Bin, Un};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    if instr.op != "cvt" {
        return Ok(false);
    }
    let (mode, integral) = match mods.one_of(&["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"]) {
        None | Some(0) => (Mode::Nearest, false),
        Some(1) => (Mode::Zero, false),
        Some(2) => (Mode::Down, false),
        Some(3) => (Mode::Up, false),
        Some(4) => (Mode::Nearest, true),
        Some(5) => (Mode::Zero, true),
        Some(6) => (Mode::Down, true),
        Some(7) => (Mode::Up, true),
        Some(_) => (Mode::Away, false),
    };
    let mut flags = mode as u32;
    for (name, flag) in
        [("sat", flag::SATURATE), ("ftz", flag::FLUSH), ("relu", flag::RELU), ("satfinite", flag::FINITE)]
    {
        if mods.has(name) {
            flags |= flag;
        }
    }
    if integral {
        flags |= flag::INTEGRAL;
    }
    if instr.mods.iter().any(|part| matches!(*part, "e4m3x2" | "e5m2x2")) {
        return fp8(lower, instr, mods, flags).map(|()| true);
    }
    let (to, from) = (mods.ty()?, mods.ty()?);
    if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
        return packed(lower, instr, to, from, flags).map(|()| true);
    }
    let a = lower.src(operand(instr, 1)?, if from == Ty::B16 { Ty::B32 } else { from })?;
    let (d, wide) = destination(lower, operand(instr, 0)?, to)?;
    let fast = if wide == (to.bytes() == 8) { fast(to, from, flags, mode) } else { None };
    let (Some(to_code), Some(from_code)) = (code_of(to), code_of(from)) else {
        return refuse("the types are not supported");
    };
    lower.emit(match fast {
        Some(exec) => Inst { d, a, ..Inst::new(exec) },
        None => {
            let imm = from_code | to_code << 8 | i64::from(wide) << 16;
            Inst { d, a, mods: flags, imm, ..Inst::new(exec::<Convert>()) }
        }
    });
    Ok(true)
}

/// Returns the destination register, and whether it is 64 bits wide. It may be wider than the type.
fn destination<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>, to: Ty) -> Lowering<(u32, bool)> {
    match operand {
        Operand::Reg(reg) if matches!(lower.class_of(*reg), Class::Word | Class::Double) => {
            let wide = lower.class_of(*reg) == Class::Double;
            if to.bytes() == 8 && !wide {
                return refuse("the destination is too narrow");
            }
            Ok((*reg, wide))
        }
        Operand::Sink => Ok((lower.temp(to), to.bytes() == 8)),
        _ => refuse("a destination is expected"),
    }
}

/// Returns the special handler for a frequent conversion, if there is one.
fn fast(to: Ty, from: Ty, flags: u32, mode: Mode) -> Option<Exec> {
    let plain = flags & !(flag::INTEGRAL | 7) == 0;
    let nearest = mode == Mode::Nearest;
    if !plain {
        return None;
    }
    Some(match (to, from) {
        (Ty::F32, Ty::S32) if nearest => exec::<Un<S32ToF32>>(),
        (Ty::F32, Ty::U32) if nearest => exec::<Un<U32ToF32>>(),
        (Ty::F64, Ty::S32) => exec::<Un<S32ToF64>>(),
        (Ty::F64, Ty::U32) => exec::<Un<U32ToF64>>(),
        (Ty::F64, Ty::S64) if nearest => exec::<Un<S64ToF64>>(),
        (Ty::F64, Ty::U64) if nearest => exec::<Un<U64ToF64>>(),
        (Ty::S32, Ty::F32) if mode == Mode::Zero => exec::<Un<F32ToS32>>(),
        (Ty::U32, Ty::F32) if mode == Mode::Zero => exec::<Un<F32ToU32>>(),
        (Ty::F64, Ty::F32) => exec::<Un<F32ToF64>>(),
        (Ty::F32, Ty::F64) if nearest && flags & flag::INTEGRAL == 0 => exec::<Un<F64ToF32>>(),
        (Ty::F32, Ty::F16) if flags & flag::INTEGRAL == 0 => exec::<Un<F16ToF32>>(),
        (Ty::F16, Ty::F32) if nearest && flags & flag::INTEGRAL == 0 => exec::<Un<F32ToF16>>(),
        (Ty::F32, Ty::Bf16) if flags & flag::INTEGRAL == 0 => exec::<Un<Bf16ToF32>>(),
        (Ty::Bf16, Ty::F32) if nearest && flags & flag::INTEGRAL == 0 => exec::<Un<F32ToBf16>>(),
        (Ty::U64 | Ty::S64, Ty::S32) => exec::<Un<SignExtend32>>(),
        (Ty::U64 | Ty::S64, Ty::U32) => exec::<Un<ZeroExtend32>>(),
        (Ty::U64 | Ty::S64, Ty::U64 | Ty::S64) => exec::<Un<Mov64>>(),
        (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64) => exec::<Un<Low32>>(),
        (Ty::U32 | Ty::S32, Ty::U32 | Ty::S32) => exec::<Un<Mov32>>(),
        (Ty::U16 | Ty::U32 | Ty::S32, Ty::U16) | (Ty::U16, Ty::U32 | Ty::S32 | Ty::S16) => exec::<Un<Low16>>(),
        (Ty::S16 | Ty::U32 | Ty::S32, Ty::S16) | (Ty::S16, Ty::U32 | Ty::S32 | Ty::U16) => exec::<Un<SignExtend16>>(),
        (Ty::U8, Ty::U8 | Ty::S8 | Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32) => exec::<Un<ZeroExtend8>>(),
        (Ty::S8, Ty::U8 | Ty::S8 | Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32) => exec::<Un<SignExtend8>>(),
        (Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32, Ty::U8) => exec::<Un<ZeroExtend8>>(),
        (Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32, Ty::S8) => exec::<Un<SignExtend8>>(),
        _ => return None,
    })
}

/// Decodes `cvt.rn.f16x2.f32 d, a, b`.
fn packed<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, to: Ty, from: Ty, flags: u32) -> Lowering {
    if from != Ty::F32 {
        return refuse("the source type is not supported");
    }
    let d = lower.dst(operand(instr, 0)?, to)?;
    let [a, b] = [lower.src(operand(instr, 1)?, from)?, lower.src(operand(instr, 2)?, from)?];
    let half = if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
    lower.emit(match (flags, half) {
        (0, Ty::F16) => Inst { d, a, b, ..Inst::new(exec::<Bin<F32ToF16x2>>()) },
        (0, _) => Inst { d, a, b, ..Inst::new(exec::<Bin<F32ToBf16x2>>()) },
        _ => {
            let imm = code_of(from).unwrap_or(0) | code_of(half).unwrap_or(0) << 8;
            Inst { d, a, b, mods: flags, imm, ..Inst::new(exec::<Convert>()) }
        }
    });
    Ok(())
}

/// Decodes `cvt.rn.satfinite.e4m3x2.f32 d, a, b`, `cvt.rn.satfinite.e4m3x2.f16x2 d, a` and `cvt.rn.f16x2.e4m3x2 d, a`.
fn fp8<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods, flags: u32) -> Lowering {
    let kind = if mods.has("e5m2x2") { fp8::flag::E5M2 } else { 0 };
    mods.has("e4m3x2");
    let relu = if flags & flag::RELU != 0 { fp8::flag::RELU } else { 0 };
    let narrows = flags & flag::FINITE != 0;
    let (from, to) = match (narrows, mods.ty()?) {
        (true, Ty::F32) => (Ty::F32, Ty::B16),
        (true, Ty::F16x2) => (Ty::B32, Ty::B16),
        (false, Ty::F16x2) => (Ty::B16, Ty::B32),
        _ => return refuse("the types are not supported"),
    };
    let d = lower.dst(operand(instr, 0)?, to)?;
    let a = lower.src(operand(instr, 1)?, from)?;
    let b = if from == Ty::F32 { lower.src(operand(instr, 2)?, from)? } else { NONE };
    let handler = if narrows { exec::<ToFp8>() } else { exec::<FromFp8>() };
    lower.emit(Inst { d, a, b, mods: kind | relu, ..Inst::new(handler) });
    Ok(())
}
