//! Decoding of integer arithmetic, logic, shifts and bit fields.

use super::statement::{Mods, emit, operand, wider};
use crate::engine::code::{Exec, Inst};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::int::*;
use crate::engine::exec::ops::{Bin, PredLogic, Tri, Un, combine};
use crate::engine::exec::packed::*;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

/// Selects the handler for a type from a table of types.
macro_rules! by_type {
    ($ty:expr, $($($pattern:ident)|+ => $shape:ident<$op:ty>),+ $(,)?) => {
        match $ty {
            $($(Ty::$pattern)|+ => exec::<$shape<$op>>(),)+
            _ => return refuse("the type is not supported"),
        }
    };
}

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "add" | "sub" => add(lower, instr, mods)?,
        "addc" | "subc" => {
            let out = mods.has("cc");
            let ty = mods.ty()?;
            let [a, b] = [lower.src(operand(instr, 1)?, ty)?, lower.src(operand(instr, 2)?, ty)?];
            carry(lower, instr, ty, [a, b], instr.op == "subc", true, out)?;
        }
        "mul" | "mul24" | "mad" | "mad24" | "madc" => multiply(lower, instr, mods)?,
        "sad" => {
            let ty = mods.ty()?;
            let sum = if ty.bytes() == 8 { Ty::U64 } else { Ty::U32 };
            let exec = by_type!(ty, U16 => Tri<SadU16>, S16 => Tri<SadS16>, U32 => Tri<SadU32>, S32 => Tri<SadS32>,
                U64 => Tri<SadU64>, S64 => Tri<SadS64>);
            emit(lower, instr, exec, ty, &[ty, ty, sum])?;
        }
        "div" | "rem" | "min" | "max" => binary(lower, instr, mods)?,
        "abs" | "neg" | "cnot" => {
            let ty = mods.ty()?;
            let exec = match instr.op {
                "abs" => by_type!(ty, S16 => Un<Abs16>, S32 => Un<Abs32>, S64 => Un<Abs64>),
                "neg" => by_type!(ty, S16 | S32 => Un<Neg32>, S64 => Un<Neg64>),
                _ => by_type!(ty, B16 => Un<CNot16>, B32 => Un<CNot32>, B64 => Un<CNot64>),
            };
            emit(lower, instr, exec, ty, &[ty])?;
        }
        "and" | "or" | "xor" | "not" => logic(lower, instr, mods)?,
        "shl" | "shr" => {
            let ty = mods.ty()?;
            let exec = if instr.op == "shl" {
                by_type!(ty, B16 | U16 | S16 => Bin<Shl16>, B32 | U32 | S32 => Bin<Shl32>, B64 | U64 | S64 => Bin<Shl64>)
            } else {
                by_type!(ty, B16 | U16 => Bin<ShrU16>, B32 | U32 => Bin<ShrU32>, B64 | U64 => Bin<ShrU64>,
                    S16 => Bin<ShrS16>, S32 => Bin<ShrS32>, S64 => Bin<ShrS64>)
            };
            emit(lower, instr, exec, ty, &[ty, Ty::U32])?;
        }
        "shf" | "prmt" | "lop3" | "dp4a" | "dp2a" | "fns" | "bmsk" | "szext" => word_only(lower, instr, mods)?,
        "popc" | "clz" | "bfind" | "brev" | "bfe" | "bfi" => bit_field(lower, instr, mods)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn add<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let (saturate, out) = (mods.has("sat"), mods.has("cc"));
    let ty = mods.ty()?;
    let subtract = instr.op == "sub";
    if out {
        let [a, b] = [lower.src(operand(instr, 1)?, ty)?, lower.src(operand(instr, 2)?, ty)?];
        return carry(lower, instr, ty, [a, b], subtract, false, true);
    }
    let exec = match (subtract, saturate) {
        (false, false) => by_type!(ty, U16 | S16 | U32 | S32 | B32 => Bin<Add32>, U64 | S64 | B64 => Bin<Add64>,
            U16x2 | S16x2 => Bin<Add16x2>),
        (true, false) => by_type!(ty, U16 | S16 | U32 | S32 | B32 => Bin<Sub32>, U64 | S64 | B64 => Bin<Sub64>,
            U16x2 | S16x2 => Bin<Sub16x2>),
        (false, true) => by_type!(ty, S32 => Bin<AddSat32>),
        (true, true) => by_type!(ty, S32 => Bin<SubSat32>),
    };
    emit(lower, instr, exec, ty, &[ty, ty])
}

/// Decodes an addition or subtraction that reads or writes the carry.
fn carry<'a>(
    lower: &mut Lower<'_, 'a>,
    instr: &Instr<'a>,
    ty: Ty,
    [a, b]: [u32; 2],
    subtract: bool,
    carry_in: bool,
    carry_out: bool,
) -> Lowering {
    let exec = match ty.bytes() {
        4 => exec::<Carry<u32>>(),
        8 => exec::<Carry<u64>>(),
        _ => return refuse("the type has no carry"),
    };
    let d = lower.dst(operand(instr, 0)?, ty)?;
    let mut inst = Inst { d, a, b, mods: subtract.into(), ..Inst::new(exec) };
    if carry_in {
        inst.c = lower.carry();
    }
    if carry_out {
        inst.d2 = lower.carry();
    }
    lower.emit(inst);
    Ok(())
}

fn multiply<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let part = mods.one_of(&["lo", "hi", "wide"]).unwrap_or(0);
    let (saturate, out) = (mods.has("sat"), mods.has("cc"));
    let ty = mods.ty()?;
    let narrow = instr.op.ends_with("24");
    let product = match (narrow, part) {
        (true, 0) => by_type!(ty, U32 => Bin<Mul24LoU>, S32 => Bin<Mul24LoS>),
        (true, 1) => by_type!(ty, U32 => Bin<Mul24HiU>, S32 => Bin<Mul24HiS>),
        (false, 0) => by_type!(ty, U16 | S16 | U32 | S32 => Bin<Mul32>, U64 | S64 => Bin<Mul64>),
        (false, 1) => by_type!(ty, U16 => Bin<MulHiU16>, S16 => Bin<MulHiS16>, U32 => Bin<MulHiU32>,
            S32 => Bin<MulHiS32>, U64 => Bin<MulHiU64>, S64 => Bin<MulHiS64>),
        (false, 2) => by_type!(ty, U16 => Bin<MulWideU16>, S16 => Bin<MulWideS16>, U32 => Bin<MulWideU32>,
            S32 => Bin<MulWideS32>),
        _ => return refuse("there is no such product"),
    };
    let result = if part == 2 { wider(ty)? } else { ty };
    if instr.op.starts_with("mul") {
        return emit(lower, instr, product, result, &[ty, ty]);
    }
    if instr.op == "mad" && !out && !saturate && part != 1 {
        let exec = if part == 0 {
            by_type!(ty, U16 | S16 | U32 | S32 => Tri<Mad32>, U64 | S64 => Tri<Mad64>)
        } else {
            by_type!(ty, U16 => Tri<MadWideU16>, S16 => Tri<MadWideS16>, U32 => Tri<MadWideU32>, S32 => Tri<MadWideS32>)
        };
        return emit(lower, instr, exec, result, &[ty, ty, result]);
    }
    if saturate && instr.op == "mad" {
        return match (part, ty) {
            (1, Ty::S32) => emit(lower, instr, exec::<Tri<MadHiSatS32>>(), ty, &[ty, ty, ty]),
            _ => refuse("the type does not saturate"),
        };
    }
    let [a, b] = [lower.src(operand(instr, 1)?, ty)?, lower.src(operand(instr, 2)?, ty)?];
    let c = lower.src(operand(instr, 3)?, result)?;
    let temp = lower.temp(result);
    lower.emit_free(Inst { d: temp, a, b, ..Inst::new(product) });
    if out || instr.op == "madc" {
        return carry(lower, instr, result, [temp, c], false, instr.op == "madc", out);
    }
    let d = lower.dst(operand(instr, 0)?, result)?;
    let sum: Exec = match (saturate, result.bytes()) {
        (true, 4) if result == Ty::S32 => exec::<Bin<AddSat32>>(),
        (false, 8) => exec::<Bin<Add64>>(),
        (false, _) => exec::<Bin<Add32>>(),
        _ => return refuse("the type does not saturate"),
    };
    lower.emit(Inst { d, a: temp, b: c, ..Inst::new(sum) });
    Ok(())
}

fn binary<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let relu = mods.has("relu");
    let ty = mods.ty()?;
    let packed = match (instr.op, relu, ty) {
        ("min", true, Ty::S32) => Some(exec::<Bin<MinReluS32>>()),
        ("max", true, Ty::S32) => Some(exec::<Bin<MaxReluS32>>()),
        ("min", true, Ty::S16x2) => Some(exec::<Bin<MinReluS16x2>>()),
        ("max", true, Ty::S16x2) => Some(exec::<Bin<MaxReluS16x2>>()),
        ("min", false, Ty::S16x2) => Some(exec::<Bin<MinS16x2>>()),
        ("max", false, Ty::S16x2) => Some(exec::<Bin<MaxS16x2>>()),
        ("min", false, Ty::U16x2) => Some(exec::<Bin<MinU16x2>>()),
        ("max", false, Ty::U16x2) => Some(exec::<Bin<MaxU16x2>>()),
        (_, true, _) => return refuse("the type has no .relu"),
        _ => None,
    };
    if let Some(exec) = packed {
        return emit(lower, instr, exec, ty, &[ty, ty]);
    }
    let exec = match instr.op {
        "div" => by_type!(ty, U16 => Bin<DivU16>, S16 => Bin<DivS16>, U32 => Bin<DivU32>, S32 => Bin<DivS32>,
            U64 => Bin<DivU64>, S64 => Bin<DivS64>),
        "rem" => by_type!(ty, U16 => Bin<RemU16>, S16 => Bin<RemS16>, U32 => Bin<RemU32>, S32 => Bin<RemS32>,
            U64 => Bin<RemU64>, S64 => Bin<RemS64>),
        "min" => by_type!(ty, U16 => Bin<MinU16>, S16 => Bin<MinS16>, U32 => Bin<MinU32>, S32 => Bin<MinS32>,
            U64 => Bin<MinU64>, S64 => Bin<MinS64>),
        _ => by_type!(ty, U16 => Bin<MaxU16>, S16 => Bin<MaxS16>, U32 => Bin<MaxU32>, S32 => Bin<MaxS32>,
            U64 => Bin<MaxU64>, S64 => Bin<MaxS64>),
    };
    emit(lower, instr, exec, ty, &[ty, ty])
}

fn logic<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let ty = mods.ty()?;
    if ty == Ty::Pred {
        let kind = match instr.op {
            "and" => combine::AND,
            "or" => combine::OR,
            "xor" => combine::XOR,
            _ => 4,
        };
        let d = lower.dst(operand(instr, 0)?, ty)?;
        let a = lower.pred(operand(instr, 1)?)?;
        let mut inst = Inst { d, a, mods: kind, ..Inst::new(exec::<PredLogic>()) };
        if kind != 4 {
            inst.b = lower.pred(operand(instr, 2)?)?;
        }
        lower.emit(inst);
        return Ok(());
    }
    if instr.op == "not" {
        let exec = if ty.bytes() == 8 { exec::<Un<Not64>>() } else { exec::<Un<Not32>>() };
        return emit(lower, instr, exec, ty, &[ty]);
    }
    let exec = match (instr.op, ty.bytes()) {
        ("and", 8) => exec::<Bin<And64>>(),
        ("and", _) => exec::<Bin<And32>>(),
        ("or", 8) => exec::<Bin<Or64>>(),
        ("or", _) => exec::<Bin<Or32>>(),
        (_, 8) => exec::<Bin<Xor64>>(),
        _ => exec::<Bin<Xor32>>(),
    };
    emit(lower, instr, exec, ty, &[ty, ty])
}

/// Decodes operations that exist only for 32 bits.
fn word_only<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let word = Ty::B32;
    match instr.op {
        "shf" => {
            let left = mods.one_of(&["l", "r"]) == Some(0);
            let wrap = mods.one_of(&["clamp", "wrap"]) == Some(1);
            mods.has("b32");
            let exec = match (left, wrap) {
                (true, false) => exec::<Tri<ShfLClamp>>(),
                (true, true) => exec::<Tri<ShfLWrap>>(),
                (false, false) => exec::<Tri<ShfRClamp>>(),
                (false, true) => exec::<Tri<ShfRWrap>>(),
            };
            emit(lower, instr, exec, word, &[word; 3])
        }
        "prmt" => {
            mods.has("b32");
            let exec = match mods.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
                None => exec::<Tri<Prmt>>(),
                Some(0) => exec::<Tri<PrmtF4e>>(),
                Some(1) => exec::<Tri<PrmtB4e>>(),
                Some(2) => exec::<Tri<PrmtRc8>>(),
                Some(3) => exec::<Tri<PrmtEcl>>(),
                Some(4) => exec::<Tri<PrmtEcr>>(),
                Some(_) => exec::<Tri<PrmtRc16>>(),
            };
            emit(lower, instr, exec, word, &[word; 3])
        }
        "lop3" => {
            mods.has("b32");
            let Operand::Int(table) = *operand(instr, 4)? else { return refuse("the table must be a constant") };
            let d = lower.dst(operand(instr, 0)?, word)?;
            let mut inst = Inst { d, imm: table, ..Inst::new(exec::<Lop3Table>()) };
            for index in 0..3 {
                let source = lower.src(operand(instr, index + 1)?, word)?;
                super::statement::set_source(&mut inst, index, source);
            }
            lower.emit(inst);
            Ok(())
        }
        "dp4a" => {
            let signs = (mods.ty()?.is_signed(), mods.ty()?.is_signed());
            let exec = match signs {
                (false, false) => exec::<Tri<Dp4aUU>>(),
                (false, true) => exec::<Tri<Dp4aUS>>(),
                (true, false) => exec::<Tri<Dp4aSU>>(),
                (true, true) => exec::<Tri<Dp4aSS>>(),
            };
            emit(lower, instr, exec, word, &[word; 3])
        }
        "dp2a" => {
            let high = mods.one_of(&["lo", "hi"]) == Some(1);
            let signs = (mods.ty()?.is_signed(), mods.ty()?.is_signed());
            let d = lower.dst(operand(instr, 0)?, word)?;
            let [a, b] = [lower.src(operand(instr, 1)?, word)?, lower.src(operand(instr, 2)?, word)?];
            let c = lower.src(operand(instr, 3)?, word)?;
            let mods = u32::from(signs.0) | u32::from(signs.1) << 1 | u32::from(high) << 2;
            lower.emit(Inst { d, a, b, c, mods, ..Inst::new(exec::<Dp2a>()) });
            Ok(())
        }
        "fns" => {
            mods.has("b32");
            emit(lower, instr, exec::<Tri<Fns>>(), word, &[word; 3])
        }
        "bmsk" => {
            mods.has("b32");
            let wrap = mods.one_of(&["clamp", "wrap"]) == Some(1);
            let exec = if wrap { exec::<Bin<BmskWrap>>() } else { exec::<Bin<BmskClamp>>() };
            emit(lower, instr, exec, word, &[word; 2])
        }
        _ => {
            mods.one_of(&["clamp"]);
            let ty = mods.ty()?;
            let exec = by_type!(ty, S32 => Bin<Szext32>, U32 => Bin<Uzext32>);
            emit(lower, instr, exec, ty, &[ty, Ty::U32])
        }
    }
}

fn bit_field<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let shift = mods.has("shiftamt");
    let ty = mods.ty()?;
    let word = Ty::U32;
    match instr.op {
        "popc" => {
            let exec = by_type!(ty, B32 => Un<Popc32>, B64 => Un<Popc64>);
            emit(lower, instr, exec, word, &[ty])
        }
        "clz" => {
            let exec = by_type!(ty, B32 => Un<Clz32>, B64 => Un<Clz64>);
            emit(lower, instr, exec, word, &[ty])
        }
        "bfind" => {
            let exec = if shift {
                by_type!(ty, U32 => Un<BfindShiftU32>, S32 => Un<BfindShiftS32>, U64 => Un<BfindShiftU64>,
                    S64 => Un<BfindShiftS64>)
            } else {
                by_type!(ty, U32 => Un<BfindU32>, S32 => Un<BfindS32>, U64 => Un<BfindU64>, S64 => Un<BfindS64>)
            };
            emit(lower, instr, exec, word, &[ty])
        }
        "brev" => {
            let exec = by_type!(ty, B32 => Un<Brev32>, B64 => Un<Brev64>);
            emit(lower, instr, exec, ty, &[ty])
        }
        "bfe" => {
            let exec = by_type!(ty, U32 => Tri<BfeU32>, S32 => Tri<BfeS32>, U64 => Tri<BfeU64>, S64 => Tri<BfeS64>);
            emit(lower, instr, exec, ty, &[ty, word, word])
        }
        _ => {
            let exec = match ty {
                Ty::B32 => exec::<Bfi32>(),
                Ty::B64 => exec::<Bfi64>(),
                _ => return refuse("the type is not supported"),
            };
            emit(lower, instr, exec, ty, &[ty, ty, word, word])
        }
    }
}
