//! 16-bit floats (ISA 9.7.4), as single values and as packed pairs.

use super::lanes::LANES;
use super::number::{BF16, F16, Format, Mode, NAN_F16, fma_odd, from_bf16, from_f16, round, to_bf16, to_f16};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

/// An operation on 16-bit floats. Its number is the low byte of `mods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    Add,
    Sub,
    Mul,
    Fma,
    Neg,
    Abs,
    Min,
    Max,
    MinNan,
    MaxNan,
    Ex2,
    Tanh,
}

const OPS: [Op; 12] =
    [Op::Add, Op::Sub, Op::Mul, Op::Fma, Op::Neg, Op::Abs, Op::Min, Op::Max, Op::MinNan, Op::MaxNan, Op::Ex2, Op::Tanh];

pub mod flag {
    pub const BF16: u32 = 1 << 8;
    pub const PACKED: u32 = 1 << 9;
    pub const SATURATE: u32 = 1 << 10;
    pub const RELU: u32 = 1 << 11;
    pub const FLUSH: u32 = 1 << 12;
}

/// Computes one 16-bit operation on the operands' bits.
pub fn compute(op: Op, mods: u32, a: u32, b: u32, c: u32) -> u32 {
    let brain = mods & flag::BF16 != 0;
    let (a, b, c) = (a & 0xffff, b & 0xffff, c & 0xffff);
    let format: Format = if brain { BF16 } else { F16 };
    let flush = |bits: u32| if mods & flag::FLUSH != 0 && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits };
    let value = |bits: u32| if brain { from_bf16(bits) } else { from_f16(flush(bits)) };
    let wide = |bits: u32| f64::from(value(bits));
    let exact = |x: f64| round(x, format, Mode::Nearest);
    let (x, y) = (wide(a), wide(b));
    let result = match op {
        Op::Neg => return if x.is_nan() { NAN_F16 } else { flush(a) ^ 0x8000 },
        Op::Abs => return if x.is_nan() { NAN_F16 } else { flush(a) & 0x7fff },
        Op::Add => exact(fma_odd(x, 1.0, y)),
        Op::Sub => exact(fma_odd(x, 1.0, -y)),
        Op::Mul => exact(x * y),
        Op::Fma => exact(fma_odd(x, y, wide(c))),
        Op::Ex2 => exact(x.exp2()),
        Op::Tanh => exact(x.tanh()),
        Op::Min | Op::MinNan | Op::Max | Op::MaxNan => {
            let propagates = matches!(op, Op::MinNan | Op::MaxNan);
            if propagates && (x.is_nan() || y.is_nan()) || x.is_nan() && y.is_nan() {
                f64::NAN
            } else if x.is_nan() {
                y
            } else if y.is_nan() {
                x
            } else {
                let first = if x == y { x.is_sign_negative() } else { x < y };
                if matches!(op, Op::Min | Op::MinNan) == first { x } else { y }
            }
        }
    };
    let mut result = result;
    if mods & flag::SATURATE != 0 {
        result = if result > 0.0 { result.min(1.0) } else { 0.0 };
    }
    if mods & flag::RELU != 0 && result <= 0.0 {
        result = 0.0;
    }
    let bits = if brain { to_bf16(result as f32) } else { to_f16(result as f32) };
    if result.is_nan() { NAN_F16 } else { flush(bits) }
}

/// The handler of `d = op(a, b, c)` on 16-bit floats.
pub struct Half;

impl Handler for Half {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let absent = [0; LANES];
        let mut d = [0; LANES];
        {
            let [a, b, c] = [inst.a, inst.b, inst.c].map(|o| if o == NONE { &absent } else { block.src::<u32>(o) });
            let op = OPS[inst.mods as usize & 255];
            for lane in super::lanes::set_lanes(mask) {
                d[lane] = compute(op, inst.mods, a[lane], b[lane], c[lane]);
                if inst.mods & flag::PACKED != 0 {
                    d[lane] |= compute(op, inst.mods, a[lane] >> 16, b[lane] >> 16, c[lane] >> 16) << 16;
                }
            }
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}
