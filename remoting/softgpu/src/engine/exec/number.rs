//! Floating-point formats and exact rounding.
//!
//! Directed rounding to narrow formats uses f64. The f64 result of an operation and the sign of its rounding error give
//! the result rounded to odd. This result can be rounded again, to fewer bits, without a double-rounding error.

/// A rounding mode. Its number is in an instruction's `mods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    Nearest = 0,
    Zero = 1,
    Down = 2,
    Up = 3,
    /// Round to nearest, ties away from zero.
    Away = 4,
}

impl Mode {
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Mode {
        match bits & 7 {
            0 => Mode::Nearest,
            1 => Mode::Zero,
            2 => Mode::Down,
            3 => Mode::Up,
            _ => Mode::Away,
        }
    }
}

/// A binary format narrower than f64.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// The number of significant bits.
    pub precision: i32,
    /// The exponent of the smallest normal number. `max` is that of the largest.
    pub min: i32,
    pub max: i32,
}

pub const F32: Format = Format { precision: 24, min: -126, max: 127 };
pub const F16: Format = Format { precision: 11, min: -14, max: 15 };
pub const BF16: Format = Format { precision: 8, min: -126, max: 127 };
pub const TF32: Format = Format { precision: 11, min: -126, max: 127 };

/// Returns 2 to the power of `exponent`. The result must be a normal number.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Rounds a number to an integer.
#[inline(always)]
pub fn to_integral(x: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Nearest => x.round_ties_even(),
        Mode::Zero => x.trunc(),
        Mode::Down => x.floor(),
        Mode::Up => x.ceil(),
        Mode::Away => x.round(),
    }
}

/// Rounds `x` to a format in the direction of `mode`. A number that is too large becomes infinity or the format's
/// largest number.
pub fn round(x: f64, format: Format, mode: Mode) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(format.min);
    let unit = exponent - (format.precision - 1);
    let rounded = to_integral(x * power(-unit), mode) * power(unit);
    let largest = power(format.max) * (2.0 - power(1 - format.precision));
    let result = if rounded.abs() <= largest {
        rounded
    } else {
        let towards_largest = match mode {
            Mode::Nearest | Mode::Away => false,
            Mode::Zero => true,
            Mode::Down => x > 0.0,
            Mode::Up => x < 0.0,
        };
        if towards_largest { largest } else { f64::INFINITY }
    };
    result.copysign(x)
}

/// Returns a number rounded to odd, given the nearest f64 and the sign of its rounding error.
fn to_odd(nearest: f64, rest: f64) -> f64 {
    if rest == 0.0 || rest.is_nan() || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        nearest
    } else if rest > 0.0 {
        nearest.next_up()
    } else {
        nearest.next_down()
    }
}

/// Returns the nearest f64 to `a + b`, and the exact rounding error.
#[inline(always)]
pub fn sum_and_rest(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// Returns `a + b` rounded to odd.
pub fn add_odd(a: f64, b: f64) -> f64 {
    let (sum, rest) = sum_and_rest(a, b);
    to_odd(sum, rest)
}

/// Returns `a * b + c` rounded to odd. The product must be exact in f64.
pub fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// Returns `a / b` rounded to odd.
pub fn div_odd(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a);
    to_odd(quotient, if b < 0.0 { -rest } else { rest })
}

/// Returns the square root rounded to odd.
pub fn sqrt_odd(a: f64) -> f64 {
    let root = a.sqrt();
    to_odd(root, (-root).mul_add(root, a))
}

/// Corrects the sign of a sum. An exact zero sum of numbers with opposite signs is -0 when rounding down.
#[inline(always)]
pub fn zero_sum(sum: f64, a: f64, b: f64, mode: Mode) -> f64 {
    if sum == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
        return if mode == Mode::Down { -0.0 } else { 0.0 };
    }
    sum
}

/// The canonical NaN of f32 arithmetic.
pub const NAN_F32: u32 = 0x7fff_ffff;
pub const NAN_F16: u32 = 0x7fff;

/// Replaces any NaN by the canonical NaN. It compares bits, because the compiler may replace one NaN by another.
#[inline(always)]
pub fn canonical(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN_F32 } else { bits })
}

/// Converts the bits of an f16 to an f32. The conversion is exact.
#[inline(always)]
pub fn from_f16(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // The multiplication changes the exponent's bias, and is correct for subnormals too.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let value = if magnitude >= 0x7c00 { f32::from_bits(magnitude << 13 | 0x7f80_0000) } else { scaled };
    f32::from_bits(value.to_bits() | sign)
}

/// Converts an f32 to the bits of an f16, rounded to nearest even.
#[inline(always)]
pub fn to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // For a subnormal result, adding 0.5 aligns the last bit of the f32 with that of the f16.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let rounded = magnitude.wrapping_add(0xfff).wrapping_add(magnitude >> 13 & 1);
    let normal = rounded.wrapping_sub((127 - 15) << 23) >> 13;
    let result = if magnitude > 0x7f80_0000 {
        return NAN_F16;
    } else if magnitude >= 0x477f_f000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        small
    } else {
        normal
    };
    sign | result
}

/// Converts the bits of a bf16 to an f32. The conversion is exact.
#[inline(always)]
pub fn from_bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// Converts an f32 to the bits of a bf16, rounded to nearest even.
#[inline(always)]
pub fn to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { NAN_F16 } else { bits.wrapping_add(0x7fff).wrapping_add(bits >> 16 & 1) >> 16 }
}
