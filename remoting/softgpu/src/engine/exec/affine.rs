//! Values that are stored without lanes: an affine register has the value `base + step * t + stride * b` in thread `t`
//! of block `b`. Blocks that run in lockstep are numbered from 0. Most addresses and loop counters have this form.
//!
//! Sums, products with a common factor and left shifts are exact modulo 2^32 or 2^64. For operations whose result
//! depends on the width (widening, comparing, right shifts), the rules require that the value wraps in no thread.

use super::lanes::Lane;

/// An affine value. In a 32-bit register only the low halves of the fields count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Affine {
    pub base: u64,
    /// The difference of the value between consecutive threads. `stride` is the difference between consecutive blocks.
    pub step: u64,
    pub stride: u64,
}

/// The highest index of a thread in its block, and the highest index of a block.
#[derive(Debug, Clone, Copy)]
pub struct Last {
    pub thread: u64,
    pub block: u64,
}

/// A function that returns the result of an operation on affine values, or `None` if the result may not be affine.
pub type Rule = fn(sources: [Affine; 3], last: Last) -> Option<Affine>;

impl Affine {
    #[inline(always)]
    pub fn uniform(base: u64) -> Affine {
        Affine { base, step: 0, stride: 0 }
    }

    /// Whether the value is the same in all threads.
    #[inline(always)]
    pub fn is_uniform(self) -> bool {
        self.step | self.stride == 0
    }

    #[inline(always)]
    pub fn at(self, thread: u64, block: u64) -> u64 {
        self.base.wrapping_add(self.step.wrapping_mul(thread)).wrapping_add(self.stride.wrapping_mul(block))
    }

    /// Returns the value with only the bits that fit in `T`.
    #[inline(always)]
    pub fn truncated<T: Lane>(self) -> Affine {
        if T::SLOTS == 1 { self.map(|part| u64::from(part as u32)) } else { self }
    }

    #[inline(always)]
    fn map(self, f: impl Fn(u64) -> u64) -> Affine {
        Affine { base: f(self.base), step: f(self.step), stride: f(self.stride) }
    }

    #[inline(always)]
    fn plus(self, other: Affine) -> Affine {
        Affine {
            base: self.base.wrapping_add(other.base),
            step: self.step.wrapping_add(other.step),
            stride: self.stride.wrapping_add(other.stride),
        }
    }

    #[inline(always)]
    fn times(self, factor: u64) -> Affine {
        self.map(|part| part.wrapping_mul(factor))
    }

    /// Whether the signed value is from `least` to `most` in every thread.
    #[inline(always)]
    fn stays_within(self, least: i64, most: i64, last: Last) -> bool {
        let ways = [(self.step, last.thread), (self.stride, last.block)];
        let (mut low, mut high) = (self.base as i64, self.base as i64);
        for (step, count) in ways {
            let Some(way) = (step as i64).checked_mul(count as i64) else { return false };
            let (Some(lower), Some(higher)) = (low.checked_add(way.min(0)), high.checked_add(way.max(0))) else {
                return false;
            };
            (low, high) = (lower, higher);
        }
        low >= least && high <= most
    }
}

pub fn never(_sources: [Affine; 3], _last: Last) -> Option<Affine> {
    None
}

#[inline(always)]
pub fn same([a, ..]: [Affine; 3], _last: Last) -> Option<Affine> {
    Some(a)
}

#[inline(always)]
pub fn sum([a, b, _]: [Affine; 3], _last: Last) -> Option<Affine> {
    Some(a.plus(b))
}

#[inline(always)]
pub fn difference([a, b, _]: [Affine; 3], _last: Last) -> Option<Affine> {
    Some(a.plus(b.times(u64::MAX)))
}

#[inline(always)]
pub fn product([a, b, _]: [Affine; 3], _last: Last) -> Option<Affine> {
    match (a.is_uniform(), b.is_uniform()) {
        (true, _) => Some(b.times(a.base)),
        (_, true) => Some(a.times(b.base)),
        _ => None,
    }
}

#[inline(always)]
pub fn product_sum([a, b, c]: [Affine; 3], last: Last) -> Option<Affine> {
    Some(product([a, b, c], last)?.plus(c))
}

#[inline(always)]
fn shift_left(a: Affine, amount: Affine, width: u32) -> Option<Affine> {
    let bits = amount.base as u32;
    match (amount.is_uniform(), bits < width) {
        (true, true) => Some(a.times(1 << bits)),
        (true, false) => Some(Affine::uniform(0)),
        _ => None,
    }
}

#[inline(always)]
pub fn shift_left_32([a, b, _]: [Affine; 3], _last: Last) -> Option<Affine> {
    shift_left(a, b, 32)
}

#[inline(always)]
pub fn shift_left_64([a, b, _]: [Affine; 3], _last: Last) -> Option<Affine> {
    shift_left(a, b, 64)
}

/// Returns the value as a signed 64-bit value, or `None` if it wraps in a thread.
#[inline(always)]
fn signed_64(a: Affine, last: Last) -> Option<Affine> {
    Some(a).filter(|a| a.stays_within(i64::MIN, i64::MAX, last))
}

/// Returns the result of an arithmetic right shift, if the bits that are shifted out are the same in all threads.
#[inline(always)]
pub fn shift_right_s64([a, b, _]: [Affine; 3], last: Last) -> Option<Affine> {
    let (a, bits) = (signed_64(a, last)?, b.base as u32);
    if !b.is_uniform() || bits > 63 || (a.step | a.stride) & ((1 << bits) - 1) != 0 {
        return None;
    }
    Some(a.map(|part| (part as i64 >> bits) as u64))
}

fn word(part: u64) -> u64 {
    i64::from(part as i32) as u64
}

/// Sign-extends a 32-bit value to 64 bits.
#[inline(always)]
fn sign_extended(a: Affine, last: Last) -> Option<Affine> {
    Some(a.map(word)).filter(|a| a.stays_within(i32::MIN.into(), i32::MAX.into(), last))
}

/// Zero-extends a 32-bit value to 64 bits.
#[inline(always)]
fn zero_extended(a: Affine, last: Last) -> Option<Affine> {
    let a = Affine { base: u64::from(a.base as u32), ..a.map(word) };
    Some(a).filter(|a| a.stays_within(0, u32::MAX.into(), last))
}

#[inline(always)]
pub fn sign_extension([a, ..]: [Affine; 3], last: Last) -> Option<Affine> {
    sign_extended(a, last)
}

#[inline(always)]
pub fn zero_extension([a, ..]: [Affine; 3], last: Last) -> Option<Affine> {
    zero_extended(a, last)
}

#[inline(always)]
pub fn wide_product_s([a, b, c]: [Affine; 3], last: Last) -> Option<Affine> {
    product([sign_extended(a, last)?, sign_extended(b, last)?, c], last)
}

#[inline(always)]
pub fn wide_product_u([a, b, c]: [Affine; 3], last: Last) -> Option<Affine> {
    product([zero_extended(a, last)?, zero_extended(b, last)?, c], last)
}

#[inline(always)]
pub fn wide_product_sum_s([a, b, c]: [Affine; 3], last: Last) -> Option<Affine> {
    product_sum([sign_extended(a, last)?, sign_extended(b, last)?, c], last)
}

#[inline(always)]
pub fn wide_product_sum_u([a, b, c]: [Affine; 3], last: Last) -> Option<Affine> {
    product_sum([zero_extended(a, last)?, zero_extended(b, last)?, c], last)
}

/// The type of the numbers in a comparison for which [`corners`] has a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Any other type or comparison. For this order, [`corners`] returns `None`.
    Other,
    Signed32,
    Unsigned32,
    Signed64,
}

/// Returns both values in the first and the last thread of the first and the last block. If a comparison has the same
/// result at these four points, it has this result in all threads.
#[inline(always)]
pub fn corners(a: Affine, b: Affine, order: Order, last: Last) -> Option<[[u64; 2]; 4]> {
    let extended = |a: Affine| match order {
        Order::Other => None,
        Order::Signed32 => sign_extended(a, last),
        Order::Unsigned32 => zero_extended(a, last),
        Order::Signed64 => signed_64(a, last),
    };
    let (a, b) = (extended(a)?, extended(b)?);
    let both = |thread, block| [a.at(thread, block), b.at(thread, block)];
    Some([both(0, 0), both(last.thread, 0), both(0, last.block), both(last.thread, last.block)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Last = Last { thread: 127, block: 3 };

    fn value(base: i64, step: i64, stride: i64) -> Affine {
        Affine { base: base as u64, step: step as u64, stride: stride as u64 }
    }

    fn pair(a: Affine, b: Affine) -> [Affine; 3] {
        [a, b, Affine::default()]
    }

    /// Checks that a rule's result equals the operation's result in every thread.
    fn holds(rule: Rule, sources: [Affine; 3], f: impl Fn([u64; 3]) -> u64) {
        let result = rule(sources, LAST).expect("affine");
        for (thread, block) in (0..128).flat_map(|thread| (0..4).map(move |block| (thread, block))) {
            assert_eq!(result.at(thread, block), f(sources.map(|source| source.at(thread, block))));
        }
    }

    #[test]
    fn rules_agree_with_the_operations() {
        let (a, b) = (value(1000, 3, -128), value(-7, 0, 0));
        holds(sum, pair(a, a), |[a, b, _]| a.wrapping_add(b));
        holds(difference, pair(b, a), |[a, b, _]| a.wrapping_sub(b));
        holds(product, pair(a, b), |[a, b, _]| a.wrapping_mul(b));
        holds(product_sum, [b, a, a], |[a, b, c]| a.wrapping_mul(b).wrapping_add(c));
        holds(shift_left_64, pair(a, value(40, 0, 0)), |[a, b, _]| a << b);
        holds(shift_right_s64, pair(value(-123_456, -8, 1024), value(3, 0, 0)), |[a, b, _]| (a as i64 >> b) as u64);
        holds(sign_extension, pair(value(-5, 1, 2), b), |[a, ..]| i64::from(a as i32) as u64);
        holds(zero_extension, pair(value(500, -1, -100), b), |[a, ..]| u64::from(a as u32));
    }

    #[test]
    fn what_wraps_or_is_not_linear_has_no_rule() {
        let none = value(0, 0, 0);
        assert_eq!(product(pair(value(0, 1, 0), value(0, 0, 1)), LAST), None);
        assert_eq!(shift_right_s64(pair(value(0, 4, 0), value(3, 0, 0)), LAST), None);
        assert_eq!(sign_extension(pair(value(i32::MAX.into(), 0, 1), none), LAST), None);
        assert_eq!(zero_extension(pair(value(100, -1, 0), none), LAST), None);
        assert_eq!(corners(value(u32::MAX.into(), 1, 0), none, Order::Unsigned32, LAST), None);
        assert_eq!(corners(value(i64::MAX, 0, 1), none, Order::Signed64, LAST), None);
    }
}
