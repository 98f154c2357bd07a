//! Integer operations on the two halves of a word (ISA 9.7.1), and operations that search a word's bits.

use super::ops::operations;

#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    let low = f(a as u16, b as u16);
    let high = f((a >> 16) as u16, (b >> 16) as u16);
    u32::from(low) | u32::from(high) << 16
}

#[inline(always)]
fn signed_halves(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    halves(a, b, |a, b| f(a as i16, b as i16) as u16)
}

/// Returns the result of `fns`: the position of the `offset`th set bit of `mask` from bit `base` on. The search goes
/// upwards, or downwards if `offset` is negative. With offset 0 the result is `base` if that bit is set.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let set = |at: i64| (0..32).contains(&at) && mask >> at & 1 == 1;
    if offset == 0 {
        return if set(base.into()) { base } else { u32::MAX };
    }
    let step = i64::from(offset.signum());
    let places = (0..32).map(|distance| i64::from(base) + step * distance).filter(|&at| set(at));
    places.skip(offset.unsigned_abs() as usize - 1).map(|at| at as u32).next().unwrap_or(u32::MAX)
}

operations! {
    Add16x2(a: u32, b: u32) -> u32 { halves(a, b, u16::wrapping_add) }
    Sub16x2(a: u32, b: u32) -> u32 { halves(a, b, u16::wrapping_sub) }
    MinU16x2(a: u32, b: u32) -> u32 { halves(a, b, Ord::min) }
    MaxU16x2(a: u32, b: u32) -> u32 { halves(a, b, Ord::max) }
    MinS16x2(a: u32, b: u32) -> u32 { signed_halves(a, b, Ord::min) }
    MaxS16x2(a: u32, b: u32) -> u32 { signed_halves(a, b, Ord::max) }
    MinReluS16x2(a: u32, b: u32) -> u32 { signed_halves(a, b, |a, b| a.min(b).max(0)) }
    MaxReluS16x2(a: u32, b: u32) -> u32 { signed_halves(a, b, |a, b| a.max(b).max(0)) }
    MinReluS32(a: i32, b: i32) -> i32 { a.min(b).max(0) }
    MaxReluS32(a: i32, b: i32) -> i32 { a.max(b).max(0) }
    Fns(mask: u32, base: u32, offset: i32) -> u32 { nth_set(mask, base, offset) }
}
