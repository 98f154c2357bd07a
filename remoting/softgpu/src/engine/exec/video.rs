//! Video instructions (ISA 9.7.16), which operate on a part of a word, or on two halves or four bytes at once.

use super::lanes::LANES;
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Average,
    Shl,
    Shr,
    Mad,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

const OPS: [Op; 15] = [
    Op::Add,
    Op::Sub,
    Op::AbsDiff,
    Op::Min,
    Op::Max,
    Op::Average,
    Op::Shl,
    Op::Shr,
    Op::Mad,
    Op::Eq,
    Op::Ne,
    Op::Lt,
    Op::Le,
    Op::Gt,
    Op::Ge,
];

/// The way in which a result is combined with the operand `c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Second {
    Nothing,
    Add,
    Min,
    Max,
    /// The result replaces a part of `c`.
    Merge,
}

const SECONDS: [Second; 5] = [Second::Nothing, Second::Add, Second::Min, Second::Max, Second::Merge];

/// The bits of [`Form::flags`].
pub mod flag {
    pub const A_SIGNED: u32 = 1;
    pub const B_SIGNED: u32 = 2;
    pub const D_SIGNED: u32 = 4;
    pub const SATURATE: u32 = 8;
    /// Whether the distance of a shift wraps. Without this flag it is limited to 32.
    pub const WRAP: u32 = 16;
    /// Whether `Mad` negates the product. The flags below negate `c` or add 1.
    pub const NEGATE_PRODUCT: u32 = 32;
    pub const NEGATE_C: u32 = 64;
    pub const PLUS_ONE: u32 = 128;
    pub const SHIFT_7: u32 = 256;
    pub const SHIFT_15: u32 = 512;
}

/// A part of a word: the position of its lowest bit and its number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub at: u32,
    pub bits: u32,
}

impl Part {
    pub const WHOLE: Part = Part { at: 0, bits: 32 };

    #[inline(always)]
    fn of(self, word: u64, signed: bool) -> i64 {
        let shifted = (word >> self.at) << (64 - self.bits);
        if signed { shifted as i64 >> (64 - self.bits) } else { (shifted >> (64 - self.bits)) as i64 }
    }

    fn pack(self) -> u32 {
        self.at | self.bits << 6
    }

    fn unpack(packed: u32) -> Part {
        Part { at: packed & 63, bits: packed >> 6 & 63 }
    }
}

/// The form of a video instruction on one part of a word.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub op: Op,
    pub second: Second,
    pub flags: u32,
    pub a: Part,
    pub b: Part,
    pub d: Part,
}

impl Form {
    pub fn packed(self) -> (u32, i64) {
        let parts = [self.a, self.b, self.d].map(|part| i64::from(part.pack()));
        (self.op as u32 | (self.second as u32) << 8 | self.flags << 16, parts[0] | parts[1] << 12 | parts[2] << 24)
    }

    fn of(inst: &Inst) -> Form {
        let part = |shift: u32| Part::unpack((inst.imm >> shift) as u32);
        let (op, second) = (OPS[(inst.mods & 0xff) as usize], SECONDS[(inst.mods >> 8 & 0xff) as usize]);
        Form { op, second, flags: inst.mods >> 16, a: part(0), b: part(12), d: part(24) }
    }

    #[inline(always)]
    fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    #[inline(always)]
    fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let a = self.a.of(a.into(), self.has(flag::A_SIGNED));
        let b = self.b.of(b.into(), self.has(flag::B_SIGNED));
        if self.op == Op::Mad {
            return self.multiply(a, b, c);
        }
        let mut value = basic(self.op, a, b, self.has(flag::WRAP));
        let signed = self.has(flag::D_SIGNED);
        if self.has(flag::SATURATE) {
            value = clamp(value, self.d.bits, signed);
        }
        let other = Part::WHOLE.of(c.into(), signed);
        match self.second {
            Second::Nothing => value as u32,
            Second::Add => (value + other) as u32,
            Second::Min => value.min(other) as u32,
            Second::Max => value.max(other) as u32,
            Second::Merge => {
                let mask = (((1u64 << self.d.bits) - 1) as u32) << self.d.at;
                (value as u32) << self.d.at & mask | c & !mask
            }
        }
    }

    /// Returns the result of `vmad`: a product of up to 66 bits plus `c`, shifted right. The result is signed if an
    /// operand is signed or negated.
    #[inline(always)]
    fn multiply(self, a: i64, b: i64, c: u32) -> u32 {
        let (negated, minus_c) = (self.has(flag::NEGATE_PRODUCT), self.has(flag::NEGATE_C));
        let signed = self.has(flag::A_SIGNED) || self.has(flag::B_SIGNED) || negated || minus_c;
        let mut product = i128::from(a) * i128::from(b);
        if negated {
            product = -product;
        }
        let mut other = if signed { i128::from(c as i32) } else { i128::from(c) };
        if minus_c {
            other = -other;
        }
        let sum = product + other + i128::from(self.has(flag::PLUS_ONE));
        let shift = if self.has(flag::SHIFT_7) {
            7
        } else if self.has(flag::SHIFT_15) {
            15
        } else {
            0
        };
        let result = sum >> shift;
        if self.has(flag::SATURATE) {
            let (low, high) = if signed { (i32::MIN.into(), i32::MAX.into()) } else { (0, u32::MAX.into()) };
            return result.clamp(low, high) as u32;
        }
        result as u32
    }
}

/// Computes an operation that the forms on one part and on several parts have in common.
#[inline(always)]
fn basic(op: Op, a: i64, b: i64, wrap: bool) -> i64 {
    let distance = if wrap { b & 31 } else { b.clamp(0, 32) };
    match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::AbsDiff => (a - b).abs(),
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::Average => (a + b + i64::from(a + b >= 0)) >> 1,
        // Limit the operand so that the result fits in 64 bits. A larger operand would only make a large result larger.
        Op::Shl if distance == 32 => a.min(1 << 30) << 32,
        Op::Shl => a << distance,
        Op::Shr => a >> distance,
        Op::Mad => 0,
        Op::Eq => (a == b).into(),
        Op::Ne => (a != b).into(),
        Op::Lt => (a < b).into(),
        Op::Le => (a <= b).into(),
        Op::Gt => (a > b).into(),
        Op::Ge => (a >= b).into(),
    }
}

#[inline(always)]
fn clamp(value: i64, bits: u32, signed: bool) -> i64 {
    let (low, high) = if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    value.clamp(low, high)
}

/// The handler of `vadd` and similar instructions on one part of each source. The form is in `mods` and `imm`.
pub struct Video;

impl Handler for Video {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let form = Form::of(inst);
        each(block, inst, mask, |a, b, c| form.apply(a, b, c))
    }
}

/// The form of a video instruction on several parts: the elements of `b:a` that it uses, a nibble for each, and the
/// results that count.
#[derive(Debug, Clone, Copy)]
pub struct Elements {
    pub op: Op,
    pub flags: u32,
    /// Whether the results are added to `c` instead of replacing its parts.
    pub accumulate: bool,
    pub count: u32,
    pub a: u32,
    pub b: u32,
    pub mask: u32,
}

impl Elements {
    pub fn packed(self) -> (u32, i64) {
        let mods =
            self.op as u32 | u32::from(self.accumulate) << 8 | self.mask << 9 | self.count << 13 | self.flags << 16;
        (mods, i64::from(self.a) | i64::from(self.b) << 16)
    }

    fn of(inst: &Inst) -> Elements {
        Elements {
            op: OPS[(inst.mods & 0xff) as usize],
            flags: inst.mods >> 16,
            accumulate: inst.mods >> 8 & 1 == 1,
            count: inst.mods >> 13 & 7,
            a: inst.imm as u32 & 0xffff,
            b: (inst.imm >> 16) as u32 & 0xffff,
            mask: inst.mods >> 9 & 15,
        }
    }

    #[inline(always)]
    fn apply(self, a: u32, b: u32, c: u32) -> u32 {
        let (both, bits) = (u64::from(b) << 32 | u64::from(a), 32 / self.count);
        let mut result = if self.accumulate { c } else { 0 };
        for index in 0..self.count {
            let source = |chosen: u32, signed: u32| {
                let at = (chosen >> (4 * index) & 7) * bits;
                Part { at, bits }.of(both, self.flags & signed != 0)
            };
            let mut value = basic(self.op, source(self.a, flag::A_SIGNED), source(self.b, flag::B_SIGNED), false);
            if self.flags & flag::SATURATE != 0 {
                value = clamp(value, bits, self.flags & flag::D_SIGNED != 0);
            }
            let (counts, at) = (self.mask >> index & 1 == 1, index * bits);
            let place = (((1u64 << bits) - 1) as u32) << at;
            match (self.accumulate, counts) {
                (true, true) => result = result.wrapping_add(value as u32),
                (true, false) => {}
                (false, true) => result |= (value as u32) << at & place,
                (false, false) => result |= c & place,
            }
        }
        result
    }
}

/// The handler of `vadd2`, `vadd4` and similar instructions.
pub struct VideoElements;

impl Handler for VideoElements {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let elements = Elements::of(inst);
        each(block, inst, mask, |a, b, c| elements.apply(a, b, c))
    }
}

#[inline(always)]
fn each(block: &mut Block, inst: &Inst, mask: u32, f: impl Fn(u32, u32, u32) -> u32) -> Step {
    let absent = [0; LANES];
    let [a, b, c] =
        [inst.a, inst.b, inst.c].map(|operand| if operand == NONE { &absent } else { block.src::<u32>(operand) });
    let mut d = [0; LANES];
    for lane in 0..LANES {
        d[lane] = f(a[lane], b[lane], c[lane]);
    }
    block.set(inst.d, &d, mask);
    Step::Next
}
