//! `mma` on f64 (ISA 9.7.14.5), with the shapes m8n8k4 and m16n8k4 to m16n8k16.
//!
//! Lane 4i + j has row i, column j of each 8 x 4 piece of A. It has row j, column i of each 4 x 8 piece of B, and row
//! i, columns 2j and 2j + 1 of each 8 x 8 piece of C.

use super::lanes::LANES;
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

const EDGE: usize = 8;
const DEPTH: usize = 4;

/// Adds the product of a piece of A and a piece of B to an 8 x 8 piece of C, which is in two registers.
#[inline(always)]
fn multiply(a: &[f64; LANES], b: &[f64; LANES], c: &mut [[f64; LANES]]) {
    for row in 0..EDGE {
        for column in 0..EDGE {
            let (register, lane) = (column % 2, DEPTH * row + column / 2);
            let mut sum = c[register][lane];
            for k in 0..DEPTH {
                sum = a[DEPTH * row + k].mul_add(b[DEPTH * column + k], sum);
            }
            c[register][lane] = sum;
        }
    }
}

/// The handler of `mma` on f64. The list of sources contains A, B and C. `imm` is the number of A's registers, and
/// `imm` >> 8 the number of B's.
pub struct MultiplyAddF64;

impl Handler for MultiplyAddF64 {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let code = block.launch.code;
        let (a, rest) = inst.sources.of(&code.lists).split_at(inst.imm as usize & 255);
        let (b, c) = rest.split_at(inst.imm as usize >> 8);
        let mut sums = [[0.0; LANES]; 4];
        for (sum, &source) in sums.iter_mut().zip(c) {
            *sum = *block.src(source);
        }
        // The pieces of A are ordered by column, so all pieces of one column are together.
        let heights = a.len() / b.len();
        for (depth, &b) in b.iter().enumerate() {
            for height in 0..heights {
                let a = block.src(a[depth * heights + height]);
                multiply(a, block.src(b), &mut sums[2 * height..2 * height + 2]);
            }
        }
        for (&target, sum) in inst.targets.of(&code.lists).iter().zip(&sums) {
            block.set(target, sum, mask);
        }
        Step::Next
    }
}
