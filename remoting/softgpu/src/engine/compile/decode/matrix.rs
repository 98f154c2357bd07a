//! Matrix instructions.

use super::{Mods, operand};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::matrix::{LoadMatrix, MultiplyAdd, element};
use crate::engine::exec::memory::space;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "ldmatrix" => load(lower, instr, mods)?,
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

fn targets<'a>(lower: &mut Lower<'_, 'a>, operand: &Operand<'a>, count: usize) -> Lowering<Vec<u32>> {
    let list = registers(operand);
    if list.len() != count {
        return refuse("the vector has another length");
    }
    list.iter().map(|item| lower.dst(item, Ty::B32)).collect()
}

fn load<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "shared", "shared::cta", "b16", "m8n8"]);
    let count = match mods.one_of(&["x1", "x2", "x4"]) {
        Some(0) => 1,
        Some(1) => 2,
        Some(2) => 4,
        _ => return refuse("the number of matrices is missing"),
    };
    let mut inst = Inst::new(exec::<LoadMatrix>());
    lower.address(&mut inst, operand(instr, 1)?, space::SHARED)?;
    if mods.has("trans") {
        inst.mods |= element::TRANSPOSE;
    }
    let targets = targets(lower, operand(instr, 0)?, count)?;
    inst.targets = lower.list(&targets);
    lower.emit(inst);
    Ok(())
}

/// A shape with its element type: registers of A and of B.
fn shape(name: &str, ty: &str) -> Option<(u32, usize, usize)> {
    Some(match (name, ty) {
        ("m16n8k16", "f16") => (element::F16, 4, 2),
        ("m16n8k8", "f16") => (element::F16, 2, 1),
        ("m16n8k16", "bf16") => (element::BF16, 4, 2),
        ("m16n8k8", "bf16") => (element::BF16, 2, 1),
        ("m16n8k8", "tf32") => (element::TF32, 4, 2),
        ("m16n8k4", "tf32") => (element::TF32, 2, 1),
        ("m16n8k32", "u8") => (element::U8, 4, 2),
        ("m16n8k16", "u8") => (element::U8, 2, 1),
        ("m16n8k32", "s8") => (element::S8, 4, 2),
        ("m16n8k16", "s8") => (element::S8, 2, 1),
        _ => return None,
    })
}

/// `mma.sync.aligned.SHAPE.row.col{.satfinite}.D.A.B.C d, a, b, c`
fn multiply<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "row", "col"]);
    let saturate = mods.has("satfinite");
    let &[.., d_ty, a_ty, b_ty, c_ty] = instr.mods.as_slice() else { return refuse("types are missing") };
    let Some(name) = instr.mods.iter().copied().find(|part| part.starts_with("m16n8k")) else {
        return refuse("the shape is not supported");
    };
    let (Some((a_kind, a_count, b_count)), Some((b_kind, ..))) = (shape(name, a_ty), shape(name, b_ty)) else {
        return refuse("the shape is not supported for the types");
    };
    let integers = a_kind >= element::U8;
    let half = match (d_ty, c_ty) {
        ("f32", "f32") if !integers => false,
        ("f16", "f16") if a_kind == element::F16 => true,
        ("s32", "s32") if integers => false,
        _ => return refuse("the types are not supported"),
    };
    if integers != (b_kind >= element::U8) || !integers && a_kind != b_kind {
        return refuse("the types are not supported");
    }
    mods.ignore(&[name, d_ty, a_ty, b_ty, c_ty]);
    let sums = if half { 2 } else { 4 };
    let mut sources = Vec::new();
    for (index, count) in [(1, a_count), (2, b_count), (3, sums)] {
        let list = registers(operand(instr, index)?);
        if list.len() != count {
            return refuse("a fragment has another length");
        }
        for item in list {
            sources.push(lower.src(item, Ty::B32)?);
        }
    }
    let targets = targets(lower, operand(instr, 0)?, sums)?;
    let flags = if half { element::HALF_SUM } else { 0 } | if saturate { element::SATURATE } else { 0 };
    let inst = Inst {
        targets: lower.list(&targets),
        sources: lower.list(&sources),
        imm: (a_count | b_count << 8) as i64,
        mods: a_kind | b_kind << 4 | flags,
        ..Inst::new(exec::<MultiplyAdd>())
    };
    lower.emit(inst);
    Ok(())
}
