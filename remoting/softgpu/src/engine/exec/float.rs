//! f32 and f64 arithmetic (ISA 9.7.3).
//!
//! Multiplication and addition are never contracted. The decoder adds instructions around the operation to flush
//! subnormals and to saturate.

use std::marker::PhantomData;

use super::lanes::{LANES, set_lanes};
use super::number::{F32, Mode, add_odd, canonical, div_odd, fma_odd, round, sqrt_odd, zero_sum};
use super::ops::{operations, tests};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

#[inline(always)]
fn min_f32(a: f32, b: f32) -> f32 {
    let less = if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    };
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() {
        a
    } else {
        less
    }
}

#[inline(always)]
fn max_f32(a: f32, b: f32) -> f32 {
    let more = if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b {
        a
    } else {
        b
    };
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() {
        a
    } else {
        more
    }
}

#[inline(always)]
fn min_f64(a: f64, b: f64) -> f64 {
    let less = if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        less
    }
}

#[inline(always)]
fn max_f64(a: f64, b: f64) -> f64 {
    let more = if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else if a > b {
        a
    } else {
        b
    };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        more
    }
}

#[inline(always)]
fn either_nan(a: f32, b: f32, otherwise: f32) -> f32 {
    if a.is_nan() | b.is_nan() { canonical(f32::NAN) } else { otherwise }
}

/// Returns the operation's magnitude with the sign of the product, as `.xorsign.abs` does.
#[inline(always)]
fn xor_sign(result: f32, a: f32, b: f32) -> f32 {
    f32::from_bits(result.to_bits() & !(1 << 31) | (a.to_bits() ^ b.to_bits()) & 1 << 31)
}

#[inline(always)]
fn unordered<T: PartialOrd>(a: T, b: T) -> bool {
    a.partial_cmp(&b).is_none()
}

operations! {
    FlushF32(a: f32) -> f32 {
        let bits = a.to_bits();
        f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 1 << 31 } else { bits })
    }
    // NaN becomes +0.
    SaturateF32(a: f32) -> f32 { if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 } }
    SaturateF64(a: f64) -> f64 { if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 } }
    AddF32(a: f32, b: f32) -> f32 { canonical(a + b) }
    SubF32(a: f32, b: f32) -> f32 { canonical(a - b) }
    MulF32(a: f32, b: f32) -> f32 { canonical(a * b) }
    FmaF32(a: f32, b: f32, c: f32) -> f32 { canonical(a.mul_add(b, c)) }
    DivF32(a: f32, b: f32) -> f32 { canonical(a / b) }
    // A divisor above 2^126 gives 0, or NaN for infinity divided by infinity.
    DivApproxF32(a: f32, b: f32) -> f32 {
        let huge = b.abs() > f32::from_bits(0x7e80_0000) && b.is_finite();
        canonical(if huge && a.is_infinite() { f32::NAN } else if huge { (a / b) * 0.0 } else { a / b })
    }
    RcpF32(a: f32) -> f32 { canonical(1.0 / a) }
    SqrtF32(a: f32) -> f32 { canonical(a.sqrt()) }
    RsqrtF32(a: f32) -> f32 { canonical((1.0 / f64::from(a).sqrt()) as f32) }
    SinF32(a: f32) -> f32 { canonical(f64::from(a).sin() as f32) }
    CosF32(a: f32) -> f32 { canonical(f64::from(a).cos() as f32) }
    Lg2F32(a: f32) -> f32 { canonical(f64::from(a).log2() as f32) }
    Ex2F32(a: f32) -> f32 { canonical(f64::from(a).exp2() as f32) }
    TanhF32(a: f32) -> f32 { canonical(f64::from(a).tanh() as f32) }
    AbsF32(a: f32) -> f32 { canonical(a.abs()) }
    NegF32(a: f32) -> f32 { canonical(-a) }
    MinF32(a: f32, b: f32) -> f32 { min_f32(a, b) }
    MaxF32(a: f32, b: f32) -> f32 { max_f32(a, b) }
    MinNanF32(a: f32, b: f32) -> f32 { either_nan(a, b, min_f32(a, b)) }
    MaxNanF32(a: f32, b: f32) -> f32 { either_nan(a, b, max_f32(a, b)) }
    MinXorF32(a: f32, b: f32) -> f32 { xor_sign(min_f32(a.abs(), b.abs()), a, b) }
    MaxXorF32(a: f32, b: f32) -> f32 { xor_sign(max_f32(a.abs(), b.abs()), a, b) }
    // In PTX, copysign takes the sign of its first operand.
    CopysignF32(a: u32, b: u32) -> u32 { a & 1 << 31 | b & !(1 << 31) }
    CopysignF64(a: u64, b: u64) -> u64 { a & 1 << 63 | b & !(1 << 63) }
    AddF64(a: f64, b: f64) -> f64 { a + b }
    SubF64(a: f64, b: f64) -> f64 { a - b }
    MulF64(a: f64, b: f64) -> f64 { a * b }
    FmaF64(a: f64, b: f64, c: f64) -> f64 { a.mul_add(b, c) }
    DivF64(a: f64, b: f64) -> f64 { a / b }
    RcpF64(a: f64) -> f64 { 1.0 / a }
    SqrtF64(a: f64) -> f64 { a.sqrt() }
    RsqrtF64(a: f64) -> f64 { 1.0 / a.sqrt() }
    AbsF64(a: f64) -> f64 { a.abs() }
    NegF64(a: f64) -> f64 { -a }
    MinF64(a: f64, b: f64) -> f64 { min_f64(a, b) }
    MaxF64(a: f64, b: f64) -> f64 { max_f64(a, b) }
}

tests! {
    EqF32(a, b: f32) { a == b }
    NeF32(a, b: f32) { a != b && !unordered(a, b) }
    LtF32(a, b: f32) { a < b }
    LeF32(a, b: f32) { a <= b }
    // The unordered forms are also true if an operand is NaN.
    EquF32(a, b: f32) { a == b || unordered(a, b) }
    NeuF32(a, b: f32) { a != b }
    LtuF32(a, b: f32) { a < b || unordered(a, b) }
    LeuF32(a, b: f32) { a <= b || unordered(a, b) }
    NumF32(a, b: f32) { !unordered(a, b) }
    NanF32(a, b: f32) { unordered(a, b) }
    EqF64(a, b: f64) { a == b }
    NeF64(a, b: f64) { a != b && !unordered(a, b) }
    LtF64(a, b: f64) { a < b }
    LeF64(a, b: f64) { a <= b }
    // The unordered forms are also true if an operand is NaN.
    EquF64(a, b: f64) { a == b || unordered(a, b) }
    NeuF64(a, b: f64) { a != b }
    LtuF64(a, b: f64) { a < b || unordered(a, b) }
    LeuF64(a, b: f64) { a <= b || unordered(a, b) }
    NumF64(a, b: f64) { !unordered(a, b) }
    NanF64(a, b: f64) { unordered(a, b) }
    FiniteF32(a, _b: f32) { a.is_finite() }
    InfiniteF32(a, _b: f32) { a.is_infinite() }
    NormalF32(a, _b: f32) { a.is_normal() }
    SubnormalF32(a, _b: f32) { a.is_subnormal() }
    FiniteF64(a, _b: f64) { a.is_finite() }
    InfiniteF64(a, _b: f64) { a.is_infinite() }
    NormalF64(a, _b: f64) { a.is_normal() }
    SubnormalF64(a, _b: f64) { a.is_subnormal() }
}

/// An operation with a rounding mode, which is in `mods`.
pub trait Directed<T> {
    fn f(a: T, b: T, c: T, mode: Mode) -> T;
}

/// The handler of f32 operations that round in a given direction. `double.rs` has those of f64.
pub struct DirectedF32<O>(PhantomData<O>);
pub struct DirectedF64<O>(PhantomData<O>);

macro_rules! directed {
    ($name:ident, $ty:ty, $finish:expr) => {
        impl<O: Directed<$ty>> Handler for $name<O> {
            #[inline(always)]
            fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
                let absent = [0.0; LANES];
                let mode = Mode::from_bits(inst.mods);
                let mut d = [0.0; LANES];
                {
                    let [a, b, c] = [inst.a, inst.b, inst.c]
                        .map(|operand| if operand == NONE { &absent } else { block.src::<$ty>(operand) });
                    // A closure would not be compiled for the same CPU features as the handler, so use a loop.
                    for lane in set_lanes(mask) {
                        d[lane] = $finish(O::f(a[lane], b[lane], c[lane], mode));
                    }
                }
                block.set(inst.d, &d, mask);
                Step::Next
            }
        }
    };
}

directed!(DirectedF32, f32, canonical);
directed!(DirectedF64, f64, |x| x);

pub struct Add;
pub struct Sub;
pub struct Mul;
pub struct Fma;
pub struct Div;
pub struct Sqrt;

fn narrow(x: f64, mode: Mode) -> f32 {
    round(x, F32, mode) as f32
}

impl Directed<f32> for Add {
    fn f(a: f32, b: f32, _c: f32, mode: Mode) -> f32 {
        let (a, b) = (a.into(), b.into());
        narrow(zero_sum(add_odd(a, b), a, b, mode), mode)
    }
}

impl Directed<f32> for Sub {
    fn f(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
        <Add as Directed<f32>>::f(a, -b, c, mode)
    }
}

impl Directed<f32> for Mul {
    fn f(a: f32, b: f32, _c: f32, mode: Mode) -> f32 {
        narrow(f64::from(a) * f64::from(b), mode)
    }
}

impl Directed<f32> for Fma {
    fn f(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
        let (a, b, c) = (f64::from(a), f64::from(b), f64::from(c));
        narrow(zero_sum(fma_odd(a, b, c), a * b, c, mode), mode)
    }
}

impl Directed<f32> for Div {
    fn f(a: f32, b: f32, _c: f32, mode: Mode) -> f32 {
        narrow(div_odd(a.into(), b.into()), mode)
    }
}

impl Directed<f32> for Sqrt {
    fn f(a: f32, _b: f32, _c: f32, mode: Mode) -> f32 {
        narrow(sqrt_odd(a.into()), mode)
    }
}
