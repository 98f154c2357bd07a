//! Decoding of `wmma`, whose instructions keep a warp's matrices in fragments of their own format.

use super::matrix::{multiply_f64, sources, targets};
use super::statement::{Mods, operand};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::matrix::{MultiplyAdd, element};
use crate::engine::exec::memory::space;
use crate::engine::exec::wmma::{Fragment, LoadFragment, StoreFragment};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Instr;

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    if instr.op != "wmma" {
        return Ok(false);
    }
    match mods.one_of(&["load", "store", "mma"]) {
        Some(2) => multiply(lower, instr, mods)?,
        Some(at) => transfer(lower, instr, mods, at == 0)?,
        None => return refuse("an operation is missing"),
    }
    Ok(true)
}

/// The size of a product: `m` rows of A, `n` columns of B, and `k` columns of A and rows of B.
#[derive(Clone, Copy)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
}

const SHAPES: [(&str, Shape); 5] = [
    ("m16n16k16", Shape { m: 16, n: 16, k: 16 }),
    ("m8n32k16", Shape { m: 8, n: 32, k: 16 }),
    ("m32n8k16", Shape { m: 32, n: 8, k: 16 }),
    ("m16n16k8", Shape { m: 16, n: 16, k: 8 }),
    ("m8n8k4", Shape { m: 8, n: 8, k: 4 }),
];

fn shape(mods: &mut Mods) -> Lowering<Shape> {
    let found = SHAPES.iter().find(|(name, _)| mods.has(name));
    found.map_or_else(|| refuse("the shape is not supported"), |&(_, shape)| Ok(shape))
}

/// Returns the element kind of a type of A and B, and the base-2 logarithm of its size in bytes. Returns `None` if the
/// shape does not have this type.
fn element_of(shape: Shape, ty: &str) -> Option<(u32, u32)> {
    let (kind, size, k) = match ty {
        "f16" => (element::F16, 1, 16),
        "bf16" => (element::BF16, 1, 16),
        "tf32" => (element::TF32, 2, 8),
        "u8" => (element::U8, 0, 16),
        "s8" => (element::S8, 0, 16),
        _ => return None,
    };
    (k == shape.k).then_some((kind, size))
}

/// Returns the number of tiles along K in a matrix A or B. A tile of 2-byte elements is 8 wide.
fn tiles(k: u32, size: u32) -> u32 {
    (k << size) / 16
}

const TYPES: [&str; 8] = ["f16", "bf16", "tf32", "u8", "s8", "f32", "s32", "f64"];

/// Decodes `wmma.load.{a,b,c}.sync.aligned.LAYOUT.SHAPE{.SPACE}.TYPE r, [p]{, stride}`, and `wmma.store.d` with swapped
/// operands.
fn transfer<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods, loads: bool) -> Lowering {
    let Some(matrix) = mods.one_of(&["a", "b", "c", "d"]) else { return refuse("the matrix is missing") };
    mods.ignore(&["sync", "aligned"]);
    let Some(layout) = mods.one_of(&["row", "col"]) else { return refuse("the layout is missing") };
    let shape = shape(mods)?;
    let space = match mods.one_of(&["global", "shared", "shared::cta"]) {
        None => space::GENERIC,
        Some(0) => space::GLOBAL,
        Some(_) => space::SHARED,
    };
    let Some(ty) = mods.one_of(&TYPES).map(|at| TYPES[at]) else { return refuse("the type is not supported") };
    let by_rows = layout == 0;
    let (rows, columns) = match matrix {
        0 => (shape.m, shape.k),
        1 => (shape.k, shape.n),
        _ => (shape.m, shape.n),
    };
    let double = ty == "f64" && shape.k == 4;
    let fragment = if matrix < 2 {
        let element = if double { Some((0, 3)) } else { element_of(shape, ty) };
        let Some((_, size)) = element else { return refuse("the type is not supported for the shape") };
        let lines = if matrix == 0 { shape.m } else { shape.n } / 8;
        // Two tiles of 8-byte elements are as wide as one tile of 2-byte elements.
        let depth = if double { 1 } else { tiles(shape.k, size) };
        let across = by_rows == (matrix == 1);
        Fragment { size, single: false, across, lines, depth, depth_first: matrix == 1 }
    } else {
        let (size, single) = match ty {
            "f16" if shape.k == 16 => (1, false),
            "f32" | "s32" if !double && shape.k > 4 => (2, true),
            "f64" if double => (3, true),
            _ => return refuse("the type is not supported for the shape"),
        };
        let (lines, depth) = (shape.m / 8, shape.n / 8);
        Fragment { size, single, across: !by_rows, lines, depth, depth_first: false }
    };
    let width = if double { Ty::F64 } else { Ty::B32 };
    let count = match (ty, matrix) {
        ("f16", 0 | 1) => 8,
        _ => (fragment.lines * fragment.depth * if fragment.single { 2 } else { 1 }) as usize,
    };
    let mut inst = Inst::new(if loads { exec::<LoadFragment>() } else { exec::<StoreFragment>() });
    lower.address(&mut inst, operand(instr, usize::from(loads))?, space)?;
    inst.mods |= fragment.to_bits();
    inst.b = match instr.operands.get(2) {
        Some(stride) => lower.src(stride, Ty::U32)?,
        None => lower.number(if by_rows { columns } else { rows }.into(), Ty::U32),
    };
    if loads {
        let targets = targets(lower, operand(instr, 0)?, count, width)?;
        inst.targets = lower.list(&targets);
    } else {
        let sources = sources(lower, operand(instr, 1)?, count, width)?;
        inst.sources = lower.list(&sources);
    }
    lower.emit(inst);
    Ok(())
}

/// Decodes `wmma.mma.sync.aligned.ALAYOUT.BLAYOUT.SHAPE.D.C` for f16, and `.D.A.B.C` for other types. The result is a
/// series of `mma`, each for 8 or 16 rows and 8 columns of C.
fn multiply<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.ignore(&["sync", "aligned", "row", "col"]);
    let shape = shape(mods)?;
    let types: Vec<&str> = instr.mods.iter().copied().filter(|part| TYPES.contains(part)).collect();
    mods.ignore(&TYPES);
    let (d_ty, a_ty, b_ty, c_ty) = match types[..] {
        [d, c] => (d, "f16", "f16", c),
        [d, a, b, c] => (d, a, b, c),
        _ => return refuse("types are missing"),
    };
    if shape.k == 4 {
        mods.ignore(&["rn"]);
        let all_double = [d_ty, a_ty, b_ty, c_ty] == ["f64"; 4];
        return if all_double { multiply_f64(lower, instr, "m8n8k4") } else { refuse("the types are not supported") };
    }
    let (Some((a_kind, size)), Some((b_kind, _))) = (element_of(shape, a_ty), element_of(shape, b_ty)) else {
        return refuse("the types are not supported for the shape");
    };
    let integers = a_kind >= element::U8;
    let saturate = integers && mods.has("satfinite");
    let halves = match (d_ty, c_ty) {
        ("f32", "f32") if !integers => [false, false],
        ("s32", "s32") if integers => [false, false],
        ("f16", "f16") if a_kind == element::F16 => [true, true],
        ("f16", "f32") if a_kind == element::F16 => [true, false],
        ("f32", "f16") if a_kind == element::F16 => [false, true],
        _ => return refuse("the types are not supported"),
    };
    if integers != (b_kind >= element::U8) || !integers && a_kind != b_kind {
        return refuse("the types are not supported");
    }
    let (rows, columns, depth) = ((shape.m / 8) as usize, (shape.n / 8) as usize, tiles(shape.k, size) as usize);
    let [d_count, c_count] = halves.map(|half| rows * columns * if half { 1 } else { 2 });
    let fragment = |lower: &mut Lower<'_, 'a>, index: usize, count: usize| {
        let count = if a_kind == element::F16 && index < 3 { 8 } else { count };
        sources(lower, operand(instr, index)?, count, Ty::B32)
    };
    let a = fragment(lower, 1, rows * depth)?;
    let b = fragment(lower, 2, columns * depth)?;
    let c = sources(lower, operand(instr, 3)?, c_count, Ty::B32)?;
    let d = targets(lower, operand(instr, 0)?, d_count, Ty::B32)?;
    let zero = lower.number(0, Ty::B32);
    let (mut all, mut results) = (Vec::new(), Vec::new());
    for column in 0..columns {
        for row in (0..rows).step_by(2) {
            // In a matrix with 8 rows the lower half is 0, and its results are discarded.
            let pair = |tile: usize| (row + tile < rows).then_some(row + tile);
            for k in 0..depth {
                all.extend([0, 1].map(|tile| pair(tile).map_or(zero, |row| a[row + rows * k])));
            }
            all.extend_from_slice(&b[column * depth..(column + 1) * depth]);
            for tile in [0, 1] {
                let each = if halves[1] { 1 } else { 2 };
                let at = pair(tile).map(|row| each * (row + rows * column));
                all.extend((0..each).map(|index| at.map_or(zero, |at| c[at + index])));
            }
            for tile in [0, 1] {
                let each = if halves[0] { 1 } else { 2 };
                for index in 0..each {
                    results.push(match pair(tile) {
                        Some(row) => d[each * (row + rows * column) + index],
                        None => lower.temp(Ty::B32),
                    });
                }
            }
        }
    }
    let flags = if halves[0] { element::HALF_RESULT } else { 0 }
        | if halves[1] { element::HALF_SUM } else { 0 }
        | if saturate { element::SATURATE } else { 0 };
    let products = columns * rows.div_ceil(2);
    let inst = Inst {
        targets: lower.list(&results),
        sources: lower.list(&all),
        imm: ((2 * depth) | depth << 8 | products << 16) as i64,
        mods: a_kind | b_kind << 4 | flags,
        ..Inst::new(exec::<MultiplyAdd>())
    };
    lower.emit(inst);
    Ok(())
}
