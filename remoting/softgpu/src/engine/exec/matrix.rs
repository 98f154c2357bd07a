//! Matrix instructions of a warp (ISA 9.7.14): `ldmatrix`, `stmatrix`, `movmatrix` and `mma`.
//!
//! For all shapes m16n8kK, fragments follow one rule. E is the number of elements in a 32-bit register. In register r
//! of A, lane l has row l/4 + 8 (r mod 2) and the columns from (l mod 4) E + 4E (r/2) on. In register r of B, it has
//! column l/4 and the rows from (l mod 4) E + 4E r on. In C and D, it has rows l/4 and l/4 + 8, and columns 2 (l mod 4)
//! and the next.

use super::fp8::{E4M3, E5M2, from_fp8};
use super::lanes::{LANES, set_lanes};
use super::number::{from_bf16, from_f16, to_f16};
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

const ROWS: usize = 16;
const COLUMNS: usize = 8;
/// The greatest K of all shapes.
const DEPTH: usize = 32;

/// The types of the elements of A and B in `mods`: A in bits 0 to 3, B in bits 4 to 7.
pub mod element {
    pub const F16: u32 = 0;
    pub const BF16: u32 = 1;
    pub const TF32: u32 = 2;
    pub const E4M3: u32 = 3;
    pub const E5M2: u32 = 4;
    pub const U8: u32 = 5;
    pub const S8: u32 = 6;
    /// Whether C is f16, packed in pairs. The flag below is the same for D.
    pub const HALF_SUM: u32 = 1 << 8;
    pub const HALF_RESULT: u32 = 1 << 11;
    /// Whether integer sums saturate.
    pub const SATURATE: u32 = 1 << 9;
    /// Whether the instruction is `ldmatrix.trans` or `stmatrix.trans`.
    pub const TRANSPOSE: u32 = 1 << 10;
}

/// Returns the number of elements in a register.
fn per_register(kind: u32) -> usize {
    match kind {
        element::F16 | element::BF16 => 2,
        element::TF32 => 1,
        _ => 4,
    }
}

/// Returns element `index` of a register as a float. The conversion of integers is exact.
#[inline(always)]
fn float_of(register: u32, index: usize, kind: u32) -> f32 {
    match kind {
        element::F16 => from_f16(register >> (16 * index) & 0xffff),
        element::BF16 => from_bf16(register >> (16 * index) & 0xffff),
        element::E4M3 => from_fp8(register >> (8 * index), E4M3),
        element::E5M2 => from_fp8(register >> (8 * index), E5M2),
        // Hardware ignores the low 13 bits of a tf32.
        _ => f32::from_bits(register & !0x1fff),
    }
}

#[inline(always)]
fn integer_of(register: u32, index: usize, kind: u32) -> i32 {
    let byte = (register >> (8 * index)) as u8;
    if kind == element::S8 { i32::from(byte as i8) } else { i32::from(byte) }
}

struct Operands<T> {
    a: [[T; DEPTH]; ROWS],
    b: [[T; COLUMNS]; DEPTH],
    depth: usize,
}

/// Copies the fragments of A and B to plain matrices.
#[inline(always)]
fn gather<T: Copy>(
    a: &[[u32; LANES]],
    b: &[[u32; LANES]],
    width: usize,
    zero: T,
    a_of: impl Fn(u32, usize) -> T,
    b_of: impl Fn(u32, usize) -> T,
) -> Operands<T> {
    let mut operands = Operands { a: [[zero; DEPTH]; ROWS], b: [[zero; COLUMNS]; DEPTH], depth: 4 * width * b.len() };
    for lane in 0..LANES {
        let (group, first) = (lane / 4, lane % 4 * width);
        for (register, values) in a.iter().enumerate() {
            for index in 0..width {
                let column = first + 4 * width * (register / 2) + index;
                operands.a[group + 8 * (register % 2)][column] = a_of(values[lane], index);
            }
        }
        for (register, values) in b.iter().enumerate() {
            for index in 0..width {
                operands.b[first + 4 * width * register + index][group] = b_of(values[lane], index);
            }
        }
    }
    operands
}

/// Returns the row and the column of element `index` of a lane's part of C.
#[inline(always)]
fn place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + 8 * (index / 2), 2 * (lane % 4) + index % 2)
}

#[inline(always)]
fn multiply_floats(operands: &Operands<f32>, sums: &mut [[f32; COLUMNS]; ROWS]) {
    for (row, sums) in sums.iter_mut().enumerate() {
        for depth in 0..operands.depth {
            let a = operands.a[row][depth];
            for (sum, &b) in sums.iter_mut().zip(&operands.b[depth]) {
                *sum = a.mul_add(b, *sum);
            }
        }
    }
}

#[inline(always)]
fn multiply_integers(operands: &Operands<i32>, sums: &mut [[i32; COLUMNS]; ROWS], saturate: bool) {
    for (row, sums) in sums.iter_mut().enumerate() {
        for (column, sum) in sums.iter_mut().enumerate() {
            let products = (0..operands.depth).map(|k| i64::from(operands.a[row][k] * operands.b[k][column]));
            let exact = i64::from(*sum) + products.sum::<i64>();
            *sum = if saturate { exact.clamp(i32::MIN.into(), i32::MAX.into()) as i32 } else { exact as i32 };
        }
    }
}

/// The handler of `mma.sync`. The list of sources contains A, B and C. `imm` is the number of A's registers, and
/// `imm >> 8` the number of B's. A `wmma.mma` consists of `imm >> 16` such products. All sources are read before a
/// result is written.
pub struct MultiplyAdd;

impl Handler for MultiplyAdd {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let code = block.launch.code;
        let sources: Vec<[u32; LANES]> =
            inst.sources.of(&code.lists).iter().map(|&source| *block.src::<u32>(source)).collect();
        let targets = inst.targets.of(&code.lists);
        let products = inst.imm as usize >> 16;
        let (given, taken) = (sources.len() / products, targets.len() / products);
        for (sources, targets) in sources.chunks_exact(given).zip(targets.chunks_exact(taken)) {
            let results = product(inst, sources);
            for (&target, result) in targets.iter().zip(&results) {
                block.set(target, result, mask);
            }
        }
        Step::Next
    }
}

/// Returns the results of one `mma`.
#[inline(always)]
fn product(inst: &Inst, sources: &[[u32; LANES]]) -> [[u32; LANES]; 4] {
    let (a, rest) = sources.split_at(inst.imm as usize & 255);
    let (b, c) = rest.split_at(inst.imm as usize >> 8 & 255);
    let (a_kind, b_kind) = (inst.mods & 15, inst.mods >> 4 & 15);
    let width = per_register(a_kind);
    let mut results = [[0u32; LANES]; 4];
    if a_kind >= element::U8 {
        let operands = gather(a, b, width, 0, |r, i| integer_of(r, i, a_kind), |r, i| integer_of(r, i, b_kind));
        let mut sums = [[0i32; COLUMNS]; ROWS];
        each(|lane, index, (row, column)| sums[row][column] = c[index][lane] as i32);
        multiply_integers(&operands, &mut sums, inst.mods & element::SATURATE != 0);
        each(|lane, index, (row, column)| results[index][lane] = sums[row][column] as u32);
    } else {
        let operands = gather(a, b, width, 0.0, |r, i| float_of(r, i, a_kind), |r, i| float_of(r, i, b_kind));
        let mut sums = [[0f32; COLUMNS]; ROWS];
        each(|lane, index, (row, column)| {
            sums[row][column] = if inst.mods & element::HALF_SUM != 0 {
                from_f16(c[index / 2][lane] >> (16 * (index % 2)) & 0xffff)
            } else {
                f32::from_bits(c[index][lane])
            };
        });
        multiply_floats(&operands, &mut sums);
        each(|lane, index, (row, column)| {
            if inst.mods & element::HALF_RESULT != 0 {
                results[index / 2][lane] |= to_f16(sums[row][column]) << (16 * (index % 2));
            } else {
                results[index][lane] = super::number::canonical(sums[row][column]).to_bits();
            }
        });
    }
    results
}

/// Calls `visit` for each of the four elements of C in each lane.
#[inline(always)]
fn each(mut visit: impl FnMut(usize, usize, (usize, usize))) {
    for lane in 0..LANES {
        for index in 0..4 {
            visit(lane, index, place(lane, index));
        }
    }
}

/// The handler of `ldmatrix`. Lane 8m + r has the address of row r of matrix m. Each lane receives two 16-bit elements
/// of each matrix.
pub struct LoadMatrix;

impl Handler for LoadMatrix {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let targets = inst.targets.of(&block.launch.code.lists);
        let holders = if targets.len() == 4 { mask } else { mask & ((1 << (8 * targets.len())) - 1) };
        let rows = match block.locate(inst, 16, holders) {
            Ok(rows) => rows,
            Err(step) => return step,
        };
        for (matrix, &target) in targets.iter().enumerate() {
            let mut d = [0; LANES];
            for lane in set_lanes(mask) {
                let (line, pair) = (lane / 4, 2 * (lane % 4));
                let element =
                    |row: usize, column: usize| u32::from(rows[8 * matrix + row].plus(2 * column).read::<u16>());
                d[lane] = if inst.mods & element::TRANSPOSE != 0 {
                    element(pair, line) | element(pair + 1, line) << 16
                } else {
                    element(line, pair) | element(line, pair + 1) << 16
                };
            }
            block.set(target, &d, mask);
        }
        Step::Next
    }
}

/// The handler of `stmatrix`, which stores the sources in the same layout as `ldmatrix`.
pub struct StoreMatrix;

impl Handler for StoreMatrix {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let sources = inst.sources.of(&block.launch.code.lists);
        let holders = if sources.len() == 4 { mask } else { mask & ((1 << (8 * sources.len())) - 1) };
        let rows = match block.locate(inst, 16, holders) {
            Ok(rows) => rows,
            Err(step) => return step,
        };
        for (matrix, &source) in sources.iter().enumerate() {
            let values = *block.src::<u32>(source);
            for lane in set_lanes(mask) {
                let (line, pair) = (lane / 4, 2 * (lane % 4));
                for (part, element) in [values[lane] as u16, (values[lane] >> 16) as u16].into_iter().enumerate() {
                    let transposes = inst.mods & element::TRANSPOSE != 0;
                    let (row, column) = if transposes { (pair + part, line) } else { (line, pair + part) };
                    rows[8 * matrix + row].plus(2 * column).write(element);
                }
            }
        }
        Step::Next
    }
}

/// The handler of `movmatrix`, which transposes a matrix. Each lane has a part of a row before, and of a column after.
pub struct TransposeMatrix;

impl Handler for TransposeMatrix {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let lists = &block.launch.code.lists;
        let (target, source) = (inst.targets.of(lists)[0], inst.sources.of(lists)[0]);
        let values = *block.src::<u32>(source);
        let element = |row: usize, column: usize| values[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        let mut d = [0; LANES];
        for lane in set_lanes(mask) {
            let (line, pair) = (lane / 4, 2 * (lane % 4));
            d[lane] = element(pair, line) | element(pair + 1, line) << 16;
        }
        block.set(target, &d, mask);
        Step::Next
    }
}
