//! 8-bit floats (ISA 5.2.3): e4m3, which has no infinity, and e5m2. Conversions to these types always saturate.

use super::lanes::{LANES, set_lanes};
use super::number::{Format, Mode, from_f16, round, to_f16};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

#[derive(Clone, Copy)]
pub struct Kind {
    format: Format,
    /// The number of bits of the stored mantissa.
    mantissa: u32,
    largest: f64,
}

pub const E4M3: Kind = Kind { format: Format { precision: 4, min: -6, max: 8 }, mantissa: 3, largest: 448.0 };
pub const E5M2: Kind = Kind { format: Format { precision: 3, min: -14, max: 15 }, mantissa: 2, largest: 57344.0 };

const NAN: u32 = 0x7f;

/// Converts an f32 to an 8-bit float, rounded to nearest even.
pub fn to_fp8(value: f32, kind: Kind) -> u32 {
    if value.is_nan() {
        return NAN;
    }
    let rounded = round(value.into(), kind.format, Mode::Nearest);
    let magnitude = rounded.abs().min(kind.largest);
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(kind.format.min);
    // The leading bit of a normal number is added to the exponent.
    let significand = magnitude * 2f64.powi(kind.mantissa as i32 - exponent);
    let bits = ((exponent - kind.format.min) << kind.mantissa) as u32 + significand as u32;
    u32::from(value.is_sign_negative()) << 7 | bits
}

pub fn from_fp8(bits: u32, kind: Kind) -> f32 {
    if kind.mantissa == E5M2.mantissa {
        // An e5m2 is the upper half of an f16.
        return from_f16((bits & 0xff) << 8);
    }
    let (exponent, significand) = (bits >> 3 & 15, bits & 7);
    let magnitude = match (exponent, significand) {
        (15, 7) => f32::NAN,
        (0, _) => significand as f32 / 512.0,
        _ => (8 + significand) as f32 * 2f32.powi(exponent as i32 - 10),
    };
    if bits & 0x80 != 0 { -magnitude } else { magnitude }
}

/// The flags of a conversion, which are in `mods`.
pub mod flag {
    pub const E5M2: u32 = 1;
    pub const RELU: u32 = 2;
}

fn kind_of(mods: u32) -> Kind {
    if mods & flag::E5M2 != 0 { E5M2 } else { E4M3 }
}

fn relu(value: f32, mods: u32) -> f32 {
    if mods & flag::RELU != 0 && value < 0.0 { 0.0 } else { value }
}

/// The handler of `cvt` to a pair of 8-bit floats. With `b`, the sources are two f32: `a` for the upper byte and `b`
/// for the lower byte. Without `b`, the source is the f16x2 in `a`.
pub struct ToFp8;

impl Handler for ToFp8 {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let kind = kind_of(inst.mods);
        let a = *block.src::<u32>(inst.a);
        let (high, low) = match inst.b {
            NONE => (a.map(|pair| from_f16(pair >> 16)), a.map(|pair| from_f16(pair & 0xffff))),
            b => (a.map(f32::from_bits), *block.src::<f32>(b)),
        };
        let mut d = [0; LANES];
        for lane in set_lanes(mask) {
            let [high, low] = [high[lane], low[lane]].map(|value| to_fp8(relu(value, inst.mods), kind));
            d[lane] = high << 8 | low;
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}

/// The handler of `cvt.rn.f16x2` from a pair of 8-bit floats.
pub struct FromFp8;

impl Handler for FromFp8 {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let kind = kind_of(inst.mods);
        let mut d = *block.src::<u32>(inst.a);
        for pair in &mut d {
            let half = |bits| to_f16(relu(from_fp8(bits, kind), inst.mods));
            *pair = half(*pair >> 8 & 0xff) << 16 | half(*pair & 0xff);
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_way_there_and_back() {
        for kind in [E4M3, E5M2] {
            for bits in 0..256 {
                let value = from_fp8(bits, kind);
                if value.is_finite() {
                    assert_eq!(to_fp8(value, kind), bits);
                }
            }
        }
    }

    #[test]
    fn conversions_round_to_even_and_saturate() {
        // ISA 9.7.9.21: .satfinite gives the largest number with the sign. NaN is 0x7f.
        for (value, e4m3, e5m2) in [
            (1.0, 0x38, 0x3c),
            (-2.0, 0xc0, 0xc0),
            (448.0, 0x7e, 0x5f),
            (1e9, 0x7e, 0x7b),
            (f32::NEG_INFINITY, 0xfe, 0xfb),
            (f32::NAN, 0x7f, 0x7f),
            (1.0625, 0x38, 0x3c),
            (1.1875, 0x3a, 0x3d),
            (0.001953125, 0x01, 0x18),
            (0.0009765625, 0x00, 0x14),
            (-0.0, 0x80, 0x80),
        ] {
            assert_eq!((to_fp8(value, E4M3), to_fp8(value, E5M2)), (e4m3, e5m2), "{value}");
        }
    }
}
