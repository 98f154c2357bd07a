//! `cvt` (ISA 9.7.9.21) for all pairs of types, with rounding and saturation.

use super::lanes::{LANES, set_lanes};
use super::number::{
    BF16, F16, F32, Format, Mode, NAN_F16, NAN_F32, TF32, from_bf16, from_f16, round, to_bf16, to_f16, to_integral,
};
use super::ops::operations;
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};
use crate::engine::ptx::Ty;

operations! {
    S32ToF32(a: i32) -> f32 { a as f32 }
    U32ToF32(a: u32) -> f32 { a as f32 }
    S32ToF64(a: i32) -> f64 { a.into() }
    U32ToF64(a: u32) -> f64 { a.into() }
    S64ToF64(a: i64) -> f64 { a as f64 }
    U64ToF64(a: u64) -> f64 { a as f64 }
    // Rust's casts truncate, saturate, and convert NaN to 0. These are PTX's rules for these conversions.
    F32ToS32(a: f32) -> i32 { a as i32 }
    F32ToU32(a: f32) -> u32 { a as u32 }
    F32ToF64(a: f32) -> f64 { a.into() }
    F64ToF32(a: f64) -> f32 { super::number::canonical(a as f32) }
    F16ToF32(a: u32) -> f32 { from_f16(a) }
    F32ToF16(a: f32) -> u32 { to_f16(a) }
    Bf16ToF32(a: u32) -> f32 { from_bf16(a) }
    F32ToBf16(a: f32) -> u32 { to_bf16(a) }
    // These convert two numbers at a time. The first operand is put in the upper half.
    F32ToF16x2(a: f32, b: f32) -> u32 { to_f16(a) << 16 | to_f16(b) }
    F32ToBf16x2(a: f32, b: f32) -> u32 { to_bf16(a) << 16 | to_bf16(b) }
}

/// The flags in the upper bits of `mods`. The rounding mode is in the bits below.
pub mod flag {
    pub const SATURATE: u32 = 8;
    pub const FLUSH: u32 = 16;
    /// Round to an integer with the rounding mode.
    pub const INTEGRAL: u32 = 32;
    pub const RELU: u32 = 64;
    pub const FINITE: u32 = 128;
}

/// The handler of all conversions. The source type is in the low byte of `imm`, and the destination type is above it
/// (`code_of`).
pub struct Convert;

const TYPES: [Ty; 13] = [
    Ty::U8,
    Ty::S8,
    Ty::U16,
    Ty::S16,
    Ty::U32,
    Ty::S32,
    Ty::U64,
    Ty::S64,
    Ty::F16,
    Ty::Bf16,
    Ty::Tf32,
    Ty::F32,
    Ty::F64,
];

/// Returns the number of a type in `imm`, or `None` if the type cannot be converted.
pub fn code_of(ty: Ty) -> Option<i64> {
    TYPES.iter().position(|&other| other == ty).map(|at| at as i64)
}

/// A value during a conversion. Both forms are exact.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Float(f64),
}

fn decode(bits: u64, ty: Ty, flush: bool) -> Value {
    match ty {
        Ty::U8 => Value::Integer((bits as u8).into()),
        Ty::S8 => Value::Integer((bits as i8).into()),
        Ty::U16 => Value::Integer((bits as u16).into()),
        Ty::S16 => Value::Integer((bits as i16).into()),
        Ty::U32 => Value::Integer((bits as u32).into()),
        Ty::S32 => Value::Integer((bits as i32).into()),
        Ty::U64 => Value::Integer(bits.into()),
        Ty::S64 => Value::Integer((bits as i64).into()),
        Ty::F16 => Value::Float(from_f16(bits as u32).into()),
        Ty::Bf16 => Value::Float(from_bf16(bits as u32).into()),
        Ty::F64 => Value::Float(f64::from_bits(bits)),
        _ => {
            let value = f32::from_bits(bits as u32);
            Value::Float(if flush && value.is_subnormal() { 0f32.copysign(value).into() } else { value.into() })
        }
    }
}

/// Returns the least and the greatest value of an integer type.
fn range(ty: Ty) -> (i128, i128) {
    let bits = ty.bytes() * 8;
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn to_integer(value: Value, from: Ty, to: Ty, mods: u32) -> u64 {
    let (least, most) = range(to);
    let integer = match value {
        Value::Integer(value) if mods & flag::SATURATE != 0 => value.clamp(least, most),
        Value::Integer(value) => value,
        Value::Float(value) if value.is_nan() => {
            if from == Ty::F64 || to.bytes() == 8 {
                1 << (to.bytes() * 8 - 1)
            } else {
                0
            }
        }
        // Conversions from floats always saturate.
        Value::Float(value) => (to_integral(value, Mode::from_bits(mods)) as i128).clamp(least, most),
    };
    integer as u64
}

/// Returns an integer as a float that is rounded to odd, so that it can be rounded again.
fn integer_to_odd(value: i128) -> f64 {
    let nearest = value as f64;
    let rest = value - nearest as i128;
    match rest.signum() {
        0 => nearest,
        _ if nearest.to_bits() & 1 == 1 => nearest,
        1 => nearest.next_up(),
        _ => nearest.next_down(),
    }
}

fn integer_to_f64(value: i128, mode: Mode) -> f64 {
    let nearest = value as f64;
    let rest = value - nearest as i128;
    match mode {
        Mode::Down if rest < 0 => nearest.next_down(),
        Mode::Up if rest > 0 => nearest.next_up(),
        Mode::Zero if rest < 0 && value > 0 => nearest.next_down(),
        Mode::Zero if rest > 0 && value < 0 => nearest.next_up(),
        _ => nearest,
    }
}

fn format_of(ty: Ty) -> Option<Format> {
    match ty {
        Ty::F16 => Some(F16),
        Ty::Bf16 => Some(BF16),
        Ty::Tf32 => Some(TF32),
        Ty::F32 => Some(F32),
        _ => None,
    }
}

fn to_float(value: Value, to: Ty, mods: u32) -> u64 {
    let mode = Mode::from_bits(mods);
    let mut x = match (value, format_of(to)) {
        (Value::Integer(value), Some(format)) => round(integer_to_odd(value), format, mode),
        (Value::Integer(value), None) => integer_to_f64(value, mode),
        (Value::Float(value), _) if mods & flag::INTEGRAL != 0 => to_integral(value, mode).copysign(value),
        (Value::Float(value), Some(format)) => round(value, format, mode),
        (Value::Float(value), None) => value,
    };
    if let (true, Some(format)) = (mods & flag::FINITE != 0 && x.is_infinite(), format_of(to)) {
        x = round(f64::MAX.copysign(x), format, Mode::Zero);
    }
    if mods & flag::SATURATE != 0 {
        x = if x > 0.0 { x.min(1.0) } else { 0.0 };
    }
    if mods & flag::RELU != 0 && x < 0.0 {
        x = 0.0;
    }
    match to {
        Ty::F16 if x.is_nan() => NAN_F16.into(),
        Ty::Bf16 if x.is_nan() => NAN_F16.into(),
        Ty::F16 => to_f16(x as f32).into(),
        Ty::Bf16 => to_bf16(x as f32).into(),
        Ty::F64 => x.to_bits(),
        _ if x.is_nan() => NAN_F32.into(),
        _ => {
            let x = x as f32;
            let x = if mods & flag::FLUSH != 0 && x.is_subnormal() { 0f32.copysign(x) } else { x };
            x.to_bits().into()
        }
    }
}

/// Converts one value. The result is sign- or zero-extended to 64 bits.
pub fn convert(bits: u64, from: Ty, to: Ty, mods: u32) -> u64 {
    let value = decode(bits, from, mods & flag::FLUSH != 0);
    if !to.is_float() {
        let (bits, width) = (to_integer(value, from, to, mods), to.bytes() * 8);
        let shift = 64 - width;
        return if to.is_signed() { ((bits << shift) as i64 >> shift) as u64 } else { bits << shift >> shift };
    }
    to_float(value, to, mods)
}

impl Handler for Convert {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (from, to) = (TYPES[inst.imm as usize & 255], TYPES[inst.imm as usize >> 8 & 255]);
        let read = |operand: u32| -> [u64; LANES] {
            if from.bytes() == 8 { *block.src::<u64>(operand) } else { block.src::<u32>(operand).map(u64::from) }
        };
        let a = read(inst.a);
        let mut d = [0u64; LANES];
        set_lanes(mask).for_each(|lane| d[lane] = convert(a[lane], from, to, inst.mods));
        if inst.b != NONE {
            // In a packed conversion, `a` is put in the upper half.
            let b = read(inst.b);
            set_lanes(mask).for_each(|lane| d[lane] = d[lane] << 16 | convert(b[lane], from, to, inst.mods));
        }
        // A 32-bit result in a 64-bit register is already extended.
        if inst.imm >> 16 & 1 == 1 {
            block.set(inst.d, &d, mask);
        } else {
            block.set(inst.d, &d.map(|bits| bits as u32), mask);
        }
        Step::Next
    }
}
