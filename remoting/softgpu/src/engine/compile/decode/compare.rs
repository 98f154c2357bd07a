//! Decoding of `setp`, `set` and `testp`.

use super::statement::{Mods, operand};
use crate::engine::code::{Exec, Inst, NONE};
use crate::engine::compile::lower::{Lower, Lowering, double, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::float::*;
use crate::engine::exec::int::*;
use crate::engine::exec::ops::{Bin, PredLogic, Select, SetP, Un, combine};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "setp" | "set" => set(lower, instr, mods)?,
        "testp" => testp(lower, instr, mods)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn set<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let Some(comparison) = mods.one_of(&COMPARISONS) else { return refuse("a comparison is missing") };
    let comparison = COMPARISONS[comparison];
    let join = match mods.one_of(&["and", "or", "xor"]) {
        None => combine::NONE,
        Some(0) => combine::AND,
        Some(1) => combine::OR,
        Some(_) => combine::XOR,
    };
    let flush = mods.has("ftz");
    let result = if instr.op == "set" { Some(mods.ty()?) } else { None };
    let ty = mods.ty()?;
    let c = if join == combine::NONE { NONE } else { lower.pred(operand(instr, 3)?)? };
    let [a, b] = [lower.src(operand(instr, 1)?, ty)?, lower.src(operand(instr, 2)?, ty)?];
    let compare = Compare { comparison, ty, flush, join, c };
    if matches!(ty, Ty::F16x2 | Ty::Bf16x2) {
        return packed(lower, instr, &compare, result, [a, b]);
    }
    let inst = compare.lower(lower, [a, b])?;
    let Some(result) = result else {
        let (d, d2) = match operand(instr, 0)? {
            Operand::Pair(p, q) => (destination(lower, p)?, destination(lower, q)?),
            single => (destination(lower, single)?, NONE),
        };
        lower.emit(Inst { d, d2, ..inst });
        return Ok(());
    };
    let c = lower.temp(Ty::Pred);
    lower.emit_free(Inst { d: c, ..inst });
    let (a, b) = (lower.number(truth(result), result), lower.number(0, result));
    let d = lower.dst(operand(instr, 0)?, result)?;
    let exec = if double(result) { exec::<Select<u64>>() } else { exec::<Select<u32>>() };
    lower.emit(Inst { d, a, b, c, ..Inst::new(exec) });
    Ok(())
}

/// Returns the bits that `set` stores for true: 1.0 for floats, and all ones for integers.
fn truth(result: Ty) -> u64 {
    match result {
        Ty::F32 => 1f32.to_bits().into(),
        Ty::F16 => 0x3c00,
        Ty::F16x2 => 0x3c00_3c00,
        Ty::Bf16 => 0x3f80,
        Ty::Bf16x2 => 0x3f80_3f80,
        _ => u64::MAX,
    }
}

/// A comparison's operation, type and modifiers, without its operands.
struct Compare<'i> {
    comparison: &'i str,
    ty: Ty,
    flush: bool,
    join: u32,
    c: u32,
}

impl Compare<'_> {
    /// Returns the instruction that compares two values. Its destinations are not yet set.
    fn lower(&self, lower: &mut Lower, [mut a, mut b]: [u32; 2]) -> Lowering<Inst> {
        if self.flush && self.ty == Ty::F32 {
            (a, b) = (super::float::flush(lower, a), super::float::flush(lower, b));
        }
        if matches!(self.ty, Ty::F16 | Ty::Bf16) {
            (a, b) = (super::half::widen(lower, a, self.ty), super::half::widen(lower, b, self.ty));
        }
        let (exec, swap) = test(self.comparison, self.ty)?;
        if swap {
            (a, b) = (b, a);
        }
        Ok(Inst { a, b, c: self.c, mods: self.join, ..Inst::new(exec) })
    }
}

/// Decodes a comparison of packed pairs. `setp` writes a predicate for each half, and `set` writes a value.
fn packed<'a>(
    lower: &mut Lower<'_, 'a>,
    instr: &Instr<'a>,
    compare: &Compare,
    result: Option<Ty>,
    operands: [u32; 2],
) -> Lowering {
    let half = Compare { ty: if compare.ty == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 }, ..*compare };
    let upper = operands.map(|operand| {
        let temp = lower.temp(Ty::B16);
        lower.emit_free(Inst { d: temp, a: operand, ..Inst::new(exec::<Un<High16>>()) });
        temp
    });
    let (low, high) = (half.lower(lower, operands)?, half.lower(lower, upper)?);
    let Some(result) = result else {
        let Operand::Pair(p, q) = operand(instr, 0)? else { return refuse("two predicates are expected") };
        let (p, q) = (destination(lower, p)?, destination(lower, q)?);
        // The first destination may be the combining predicate, which the second comparison reads, so write it to a
        // temporary.
        let first = lower.temp(Ty::Pred);
        lower.emit_free(Inst { d: first, ..low });
        lower.emit(Inst { d: q, ..high });
        if p != NONE {
            lower.emit(Inst { d: p, a: first, ..Inst::new(exec::<PredLogic>()) });
        }
        return Ok(());
    };
    let (yes, no) = (lower.number(truth(result) & 0xffff, Ty::B32), lower.number(0, Ty::B32));
    let halves = [low, high].map(|inst| {
        let (c, d) = (lower.temp(Ty::Pred), lower.temp(Ty::B32));
        lower.emit_free(Inst { d: c, ..inst });
        lower.emit_free(Inst { d, a: yes, b: no, c, ..Inst::new(exec::<Select<u32>>()) });
        d
    });
    let d = lower.dst(operand(instr, 0)?, result)?;
    lower.emit(Inst { d, a: halves[0], b: halves[1], ..Inst::new(exec::<Bin<Pack16>>()) });
    Ok(())
}

fn destination<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>) -> Lowering<u32> {
    if *operand == Operand::Sink { Ok(NONE) } else { lower.dst(operand, Ty::Pred) }
}

/// Returns the handler of a comparison for a type, and whether its operands must be swapped.
fn test(comparison: &str, ty: Ty) -> Lowering<(Exec, bool)> {
    if ty.is_float() {
        return float_test(comparison, ty);
    }
    let signed = ty.is_signed();
    let (name, swap) = match comparison {
        "gt" | "hi" => ("lt", true),
        "ge" | "hs" => ("le", true),
        "lo" => ("lt", false),
        "ls" => ("le", false),
        other => (other, false),
    };
    let exec = match (name, ty.bytes(), signed) {
        ("eq", 2, _) => exec::<SetP<EqB16>>(),
        ("ne", 2, _) => exec::<SetP<NeB16>>(),
        ("lt", 2, false) => exec::<SetP<LtU16>>(),
        ("le", 2, false) => exec::<SetP<LeU16>>(),
        ("lt", 2, true) => exec::<SetP<LtS16>>(),
        ("le", 2, true) => exec::<SetP<LeS16>>(),
        ("eq", 4, _) => exec::<SetP<EqB32>>(),
        ("ne", 4, _) => exec::<SetP<NeB32>>(),
        ("lt", 4, false) => exec::<SetP<LtU32>>(),
        ("le", 4, false) => exec::<SetP<LeU32>>(),
        ("lt", 4, true) => exec::<SetP<LtS32>>(),
        ("le", 4, true) => exec::<SetP<LeS32>>(),
        ("eq", 8, _) => exec::<SetP<EqB64>>(),
        ("ne", 8, _) => exec::<SetP<NeB64>>(),
        ("lt", 8, false) => exec::<SetP<LtU64>>(),
        ("le", 8, false) => exec::<SetP<LeU64>>(),
        ("lt", 8, true) => exec::<SetP<LtS64>>(),
        ("le", 8, true) => exec::<SetP<LeS64>>(),
        _ => return refuse("the type has no such comparison"),
    };
    Ok((exec, swap))
}

fn float_test(comparison: &str, ty: Ty) -> Lowering<(Exec, bool)> {
    let (name, swap) = match comparison {
        "gt" => ("lt", true),
        "ge" => ("le", true),
        "gtu" => ("ltu", true),
        "geu" => ("leu", true),
        other => (other, false),
    };
    let exec = match (name, ty) {
        ("eq", Ty::F64) => exec::<SetP<EqF64>>(),
        ("ne", Ty::F64) => exec::<SetP<NeF64>>(),
        ("lt", Ty::F64) => exec::<SetP<LtF64>>(),
        ("le", Ty::F64) => exec::<SetP<LeF64>>(),
        ("equ", Ty::F64) => exec::<SetP<EquF64>>(),
        ("neu", Ty::F64) => exec::<SetP<NeuF64>>(),
        ("ltu", Ty::F64) => exec::<SetP<LtuF64>>(),
        ("leu", Ty::F64) => exec::<SetP<LeuF64>>(),
        ("num", Ty::F64) => exec::<SetP<NumF64>>(),
        ("nan", Ty::F64) => exec::<SetP<NanF64>>(),
        ("eq", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<EqF32>>(),
        ("ne", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<NeF32>>(),
        ("lt", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<LtF32>>(),
        ("le", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<LeF32>>(),
        ("equ", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<EquF32>>(),
        ("neu", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<NeuF32>>(),
        ("ltu", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<LtuF32>>(),
        ("leu", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<LeuF32>>(),
        ("num", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<NumF32>>(),
        ("nan", Ty::F32 | Ty::F16 | Ty::Bf16) => exec::<SetP<NanF32>>(),
        _ => return refuse("the type has no such comparison"),
    };
    Ok((exec, swap))
}

fn testp<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let Some(kind) = mods.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]) else {
        return refuse("a test is missing");
    };
    let ty = mods.ty()?;
    // `number` is the negated result of the test for NaN.
    let (exec, negate) = match (kind, ty) {
        (0, Ty::F32) => (exec::<SetP<FiniteF32>>(), false),
        (1, Ty::F32) => (exec::<SetP<InfiniteF32>>(), false),
        (2, Ty::F32) => (exec::<SetP<NanF32>>(), true),
        (3, Ty::F32) => (exec::<SetP<NanF32>>(), false),
        (4, Ty::F32) => (exec::<SetP<NormalF32>>(), false),
        (5, Ty::F32) => (exec::<SetP<SubnormalF32>>(), false),
        (0, Ty::F64) => (exec::<SetP<FiniteF64>>(), false),
        (1, Ty::F64) => (exec::<SetP<InfiniteF64>>(), false),
        (2, Ty::F64) => (exec::<SetP<NanF64>>(), true),
        (3, Ty::F64) => (exec::<SetP<NanF64>>(), false),
        (4, Ty::F64) => (exec::<SetP<NormalF64>>(), false),
        (_, Ty::F64) => (exec::<SetP<SubnormalF64>>(), false),
        _ => return refuse("the type is not supported"),
    };
    let d = lower.dst(operand(instr, 0)?, Ty::Pred)?;
    let a = lower.src(operand(instr, 1)?, ty)?;
    let inst = Inst { a, b: a, ..Inst::new(exec) };
    lower.emit(if negate { Inst { d2: d, ..inst } } else { Inst { d, ..inst } });
    Ok(())
}
