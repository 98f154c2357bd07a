//! f64 arithmetic with a given rounding direction (ISA 9.7.3).
//!
//! There is no wider format than f64. If the rounding error of the nearest f64 is itself an f64, then the nearest f64
//! and the error's sign determine the result. A software implementation handles the remaining cases: the smallest and
//! the largest numbers, and fused operations.

use rustc_apfloat::ieee::Double;
use rustc_apfloat::{Float, Round};

use super::float::{Add, Directed, Div, Fma, Mul, Sqrt, Sub};
use super::number::{Mode, sum_and_rest, zero_sum};

/// The smallest magnitude for which the error of a product or a quotient is not smaller than the smallest f64.
const SMALLEST: f64 = f64::from_bits((1023 - 968) << 52);
/// The magnitude below which no intermediate result is infinite.
const LARGEST: f64 = f64::from_bits((1023 + 1022) << 52);

/// Returns the result in a rounding mode, given the nearest number and the sign of its rounding error.
#[inline(always)]
fn rounded(nearest: f64, rest: f64, mode: Mode) -> f64 {
    let toward_zero = || if nearest > 0.0 { nearest.next_down() } else { nearest.next_up() };
    match mode {
        Mode::Down if rest < 0.0 => nearest.next_down(),
        Mode::Up if rest > 0.0 => nearest.next_up(),
        Mode::Zero if rest != 0.0 && (rest < 0.0) == (nearest > 0.0) => toward_zero(),
        _ => nearest,
    }
}

#[inline(always)]
fn is_within(x: f64, least: f64) -> bool {
    let size = x.abs();
    size >= least && size < LARGEST
}

fn soft(x: f64) -> Double {
    Double::from_bits(x.to_bits().into())
}

fn hard(x: Double) -> f64 {
    f64::from_bits(x.to_bits() as u64)
}

fn soft_mode(mode: Mode) -> Round {
    match mode {
        Mode::Nearest => Round::NearestTiesToEven,
        Mode::Zero => Round::TowardZero,
        Mode::Down => Round::TowardNegative,
        Mode::Up => Round::TowardPositive,
        Mode::Away => Round::NearestTiesToAway,
    }
}

#[cold]
fn soft_add(a: f64, b: f64, mode: Mode) -> f64 {
    hard(soft(a).add_r(soft(b), soft_mode(mode)).value)
}

#[cold]
fn soft_mul(a: f64, b: f64, mode: Mode) -> f64 {
    hard(soft(a).mul_r(soft(b), soft_mode(mode)).value)
}

#[cold]
fn soft_div(a: f64, b: f64, mode: Mode) -> f64 {
    hard(soft(a).div_r(soft(b), soft_mode(mode)).value)
}

impl Directed<f64> for Add {
    #[inline(always)]
    fn f(a: f64, b: f64, _c: f64, mode: Mode) -> f64 {
        let (sum, rest) = sum_and_rest(a, b);
        if [a, b, sum].iter().all(|x| x.abs() < LARGEST) && mode != Mode::Away {
            return rounded(zero_sum(sum, a, b, mode), rest, mode);
        }
        soft_add(a, b, mode)
    }
}

impl Directed<f64> for Sub {
    #[inline(always)]
    fn f(a: f64, b: f64, c: f64, mode: Mode) -> f64 {
        <Add as Directed<f64>>::f(a, -b, c, mode)
    }
}

impl Directed<f64> for Mul {
    #[inline(always)]
    fn f(a: f64, b: f64, _c: f64, mode: Mode) -> f64 {
        let product = a * b;
        if is_within(product, SMALLEST) && mode != Mode::Away {
            return rounded(product, a.mul_add(b, -product), mode);
        }
        soft_mul(a, b, mode)
    }
}

impl Directed<f64> for Fma {
    fn f(a: f64, b: f64, c: f64, mode: Mode) -> f64 {
        hard(soft(a).mul_add_r(soft(b), soft(c), soft_mode(mode)).value)
    }
}

impl Directed<f64> for Div {
    #[inline(always)]
    fn f(a: f64, b: f64, _c: f64, mode: Mode) -> f64 {
        let quotient = a / b;
        if is_within(quotient, SMALLEST) && is_within(a, SMALLEST) && is_within(b, SMALLEST) && mode != Mode::Away {
            let rest = (-quotient).mul_add(b, a);
            return rounded(quotient, if b < 0.0 { -rest } else { rest }, mode);
        }
        soft_div(a, b, mode)
    }
}

impl Directed<f64> for Sqrt {
    fn f(a: f64, _b: f64, _c: f64, mode: Mode) -> f64 {
        // Subnormals are scaled, so that the error is exact.
        let scale = if a < f64::MIN_POSITIVE { 2f64.powi(54) } else { 1.0 };
        let scaled = a * scale * scale;
        let root = scaled.sqrt();
        let rest = (-root).mul_add(root, scaled);
        let directed = match mode {
            Mode::Zero | Mode::Down if rest < 0.0 => root.next_down(),
            Mode::Up if rest > 0.0 => root.next_up(),
            _ => root,
        };
        directed / scale
    }
}
