//! `.f32x2` (ISA 9.7.3): two f32 in a 64-bit register, which are computed independently.

use std::marker::PhantomData;

use super::float::Directed;
use super::lanes::{LANES, set_lanes};
use super::number::{Mode, canonical};
use super::ops::{Op1, Op2, Op3};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

/// The handler of an f32 operation on both halves.
pub struct Pair<O>(PhantomData<O>);

#[inline(always)]
fn low(pair: u64) -> f32 {
    f32::from_bits(pair as u32)
}

#[inline(always)]
fn high(pair: u64) -> f32 {
    f32::from_bits((pair >> 32) as u32)
}

#[inline(always)]
fn join(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

impl<O: Op1<A = f32, D = f32>> Op1 for Pair<O> {
    type A = u64;
    type D = u64;
    #[inline(always)]
    fn f(a: u64) -> u64 {
        join(O::f(low(a)), O::f(high(a)))
    }
}

impl<O: Op2<A = f32, B = f32, D = f32>> Op2 for Pair<O> {
    type A = u64;
    type B = u64;
    type D = u64;
    #[inline(always)]
    fn f(a: u64, b: u64) -> u64 {
        join(O::f(low(a), low(b)), O::f(high(a), high(b)))
    }
}

impl<O: Op3<A = f32, B = f32, C = f32, D = f32>> Op3 for Pair<O> {
    type A = u64;
    type B = u64;
    type C = u64;
    type D = u64;
    #[inline(always)]
    fn f(a: u64, b: u64, c: u64) -> u64 {
        join(O::f(low(a), low(b), low(c)), O::f(high(a), high(b), high(c)))
    }
}

/// The handler of an operation that rounds both halves in the direction in `mods`.
pub struct DirectedPair<O>(PhantomData<O>);

impl<O: Directed<f32>> Handler for DirectedPair<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let absent = [0; LANES];
        let mode = Mode::from_bits(inst.mods);
        let mut d = [0; LANES];
        {
            let [a, b, c] = [inst.a, inst.b, inst.c]
                .map(|operand| if operand == NONE { &absent } else { block.src::<u64>(operand) });
            for lane in set_lanes(mask) {
                let [a, b, c] = [a[lane], b[lane], c[lane]];
                let half = |of: fn(u64) -> f32| canonical(O::f(of(a), of(b), of(c), mode));
                d[lane] = join(half(low), half(high));
            }
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}
