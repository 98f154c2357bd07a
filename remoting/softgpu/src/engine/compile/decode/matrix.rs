//! Decoding of matrix instructions.

use super::memory::space_of;
use super::statement::{Mods, operand};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::matrix::{LoadMatrix, MultiplyAdd, StoreMatrix, TransposeMatrix, element};
use crate::engine::exec::matrix_f64::MultiplyAddF64;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "ldmatrix" | "stmatrix" => transfer(lower, instr, mods)?,
        "movmatrix" => transpose(lower, instr, mods)?,
        "mma" => multiply(lower, instr, mods)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn registers<'i, 'a>(operand: &'i Operand<'a>) -> &'i [Operand<'a>] {
    match operand {
        Operand::Vector(list) => list,
        single => std::slice::from_ref(single),
    }
}

pub fn targets<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>, count: usize, ty: Ty) -> Lowering<Vec<u32>> {
    let list = registers(operand);
    if list.len() != count {
        return refuse("the vector has another length");
    }
    list.iter().map(|item| lower.dst(item, ty)).collect()
}

pub fn sources<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>, count: usize, ty: Ty) -> Lowering<Vec<u32>> {
    let list = registers(operand);
    if list.len() != count {
        return refuse("a fragment has another length");
    }
    list.iter().map(|item| lower.src(item, ty)).collect()
}

/// Decodes `ldmatrix` and `stmatrix`.
fn transfer<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "b16", "m8n8"]);
    let space = space_of(mods);
    let count = match mods.one_of(&["x1", "x2", "x4"]) {
        Some(0) => 1,
        Some(1) => 2,
        Some(2) => 4,
        _ => return refuse("the number of matrices is missing"),
    };
    let loads = instr.op == "ldmatrix";
    let mut inst = Inst::new(if loads { exec::<LoadMatrix>() } else { exec::<StoreMatrix>() });
    lower.address(&mut inst, operand(instr, usize::from(loads))?, space)?;
    if mods.has("trans") {
        inst.mods |= element::TRANSPOSE;
    }
    if loads {
        let targets = targets(lower, operand(instr, 0)?, count, Ty::B32)?;
        inst.targets = lower.list(&targets);
    } else {
        let sources = sources(lower, operand(instr, 1)?, count, Ty::B32)?;
        inst.sources = lower.list(&sources);
    }
    lower.emit(inst);
    Ok(())
}

/// Decodes `movmatrix.sync.aligned.m8n8.trans.b16 d, a`, which has only this shape and type.
fn transpose<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "m8n8", "trans", "b16"]);
    let targets = targets(lower, operand(instr, 0)?, 1, Ty::B32)?;
    let sources = sources(lower, operand(instr, 1)?, 1, Ty::B32)?;
    let (targets, sources) = (lower.list(&targets), lower.list(&sources));
    lower.emit(Inst { targets, sources, ..Inst::new(exec::<TransposeMatrix>()) });
    Ok(())
}

/// Returns the element kind of a shape and type, and the numbers of registers of A and of B.
fn shape(name: &str, ty: &str) -> Option<(u32, usize, usize)> {
    Some(match (name, ty) {
        ("m16n8k16", "f16") => (element::F16, 4, 2),
        ("m16n8k8", "f16") => (element::F16, 2, 1),
        ("m16n8k16", "bf16") => (element::BF16, 4, 2),
        ("m16n8k8", "bf16") => (element::BF16, 2, 1),
        ("m16n8k8", "tf32") => (element::TF32, 4, 2),
        ("m16n8k4", "tf32") => (element::TF32, 2, 1),
        ("m16n8k32", "e4m3") => (element::E4M3, 4, 2),
        ("m16n8k16", "e4m3") => (element::E4M3, 2, 1),
        ("m16n8k32", "e5m2") => (element::E5M2, 4, 2),
        ("m16n8k16", "e5m2") => (element::E5M2, 2, 1),
        ("m16n8k32", "u8") => (element::U8, 4, 2),
        ("m16n8k16", "u8") => (element::U8, 2, 1),
        ("m16n8k32", "s8") => (element::S8, 4, 2),
        ("m16n8k16", "s8") => (element::S8, 2, 1),
        _ => return None,
    })
}

/// Decodes `mma.sync.aligned.SHAPE.row.col{.satfinite}.D.A.B.C d, a, b, c`. `.satfinite` may also be last.
fn multiply<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "row", "col"]);
    let saturate = mods.has("satfinite");
    let Some(name) = instr.mods.iter().copied().find(|part| part.starts_with('m') && part.contains('k')) else {
        return refuse("the shape is missing");
    };
    let rest: Vec<&str> =
        instr.mods.iter().copied().filter(|part| !NOT_TYPES.contains(part) && *part != name).collect();
    let &[d_ty, a_ty, b_ty, c_ty] = rest.as_slice() else { return refuse("types are missing") };
    mods.ignore(&[name, d_ty, a_ty, b_ty, c_ty]);
    if [d_ty, a_ty, b_ty, c_ty] == ["f64"; 4] {
        return multiply_f64(lower, instr, name);
    }
    // The shape with 8 rows is executed as one with 16 rows whose lower half is 0.
    let (name, short) = if name == "m8n8k16" { ("m16n8k16", true) } else { (name, false) };
    let (Some((a_kind, a_count, b_count)), Some((b_kind, ..))) = (shape(name, a_ty), shape(name, b_ty)) else {
        return refuse("the shape is not supported for the types");
    };
    let integers = a_kind >= element::U8;
    let bytes = a_kind >= element::E4M3;
    let half = match (d_ty, c_ty) {
        ("f32", "f32") if !integers => false,
        ("f16", "f16") if a_kind == element::F16 || bytes && !integers => true,
        ("s32", "s32") if integers => false,
        _ => return refuse("the types are not supported"),
    };
    if integers != (b_kind >= element::U8) || !bytes && a_kind != b_kind || short && !integers {
        return refuse("the types are not supported");
    }
    let sums = if half || short { 2 } else { 4 };
    let zero = lower.number(0, Ty::B32);
    let mut all = sources(lower, operand(instr, 1)?, if short { 1 } else { a_count }, Ty::B32)?;
    all.resize(a_count, zero);
    all.extend(sources(lower, operand(instr, 2)?, b_count, Ty::B32)?);
    all.extend(sources(lower, operand(instr, 3)?, sums, Ty::B32)?);
    all.resize(a_count + b_count + if short { 4 } else { sums }, zero);
    let targets = targets(lower, operand(instr, 0)?, sums, Ty::B32)?;
    let flags =
        if half { element::HALF_SUM | element::HALF_RESULT } else { 0 } | if saturate { element::SATURATE } else { 0 };
    let inst = Inst {
        targets: lower.list(&targets),
        sources: lower.list(&all),
        imm: (a_count | b_count << 8 | 1 << 16) as i64,
        mods: a_kind | b_kind << 4 | flags,
        ..Inst::new(exec::<MultiplyAdd>())
    };
    lower.emit(inst);
    Ok(())
}

/// The modifiers of `mma` that are neither a shape nor a type.
const NOT_TYPES: [&str; 5] = ["sync", "aligned", "row", "col", "satfinite"];

pub fn multiply_f64<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, shape: &str) -> Lowering {
    let (a, b, sums) = match shape {
        "m8n8k4" => (1, 1, 2),
        "m16n8k4" => (2, 1, 4),
        "m16n8k8" => (4, 2, 4),
        "m16n8k16" => (8, 4, 4),
        _ => return refuse("the shape is not supported for the types"),
    };
    let mut all = Vec::new();
    for (index, count) in [(1, a), (2, b), (3, sums)] {
        all.extend(sources(lower, operand(instr, index)?, count, Ty::F64)?);
    }
    let targets = targets(lower, operand(instr, 0)?, sums, Ty::F64)?;
    let (targets, sources) = (lower.list(&targets), lower.list(&all));
    let imm = (a | b << 8) as i64;
    lower.emit(Inst { targets, sources, imm, ..Inst::new(exec::<MultiplyAddF64>()) });
    Ok(())
}
