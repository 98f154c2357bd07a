//! Integer arithmetic, logic and comparison (ISA 9.7.1, 9.7.2, 9.7.6 to 9.7.8).
//!
//! A 16-bit operation reads and writes 32-bit lanes, whose upper halves are undefined.

use super::lanes::{ALL, LANES, Lane};
use super::ops::{operations, tests};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

/// Returns the result of `bfe`. Only the low 8 bits of `pos` and `len` count. Bits above the top read as the sign, or
/// as 0 if unsigned.
#[inline(always)]
fn extract(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 255, len & 255);
    let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(width - 1) & 1 };
    let field = if pos >= width { 0 } else { a >> pos };
    let kept = len.min(width.saturating_sub(pos));
    let low = if kept >= 64 { u64::MAX } else { (1 << kept) - 1 };
    field & low | if sign == 1 { !low } else { 0 }
}

/// Returns the result of `bfi`: `b` with the low bits of `a` inserted.
#[inline(always)]
fn insert(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 255, len & 255);
    if pos >= width || len == 0 {
        return b;
    }
    let kept = len.min(width - pos);
    let field = if kept >= 64 { u64::MAX } else { (1 << kept) - 1 };
    b & !(field << pos) | (a & field) << pos
}

/// Returns the result of `prmt` in its default mode. Each nibble of the selector picks a byte, and the nibble's top bit
/// replicates the byte's sign.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(a) | u64::from(b) << 32;
    (0..4).fold(0, |result, index| {
        let nibble = selector >> (4 * index) & 15;
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result | u32::from(byte) << (8 * index)
    })
}

/// The selectors of the modes of `prmt`, by the low two bits of the third operand.
const PERMUTE_MODES: [[u32; 4]; 6] = [
    [0x3210, 0x4321, 0x5432, 0x6543],
    [0x5670, 0x6701, 0x7012, 0x0123],
    [0x0000, 0x1111, 0x2222, 0x3333],
    [0x3210, 0x3211, 0x3222, 0x3333],
    [0x0000, 0x1110, 0x2210, 0x3210],
    [0x1010, 0x3232, 0x1010, 0x3232],
];

#[inline(always)]
fn lookup(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let mut result = 0;
    for index in 0..8 {
        if table >> index & 1 == 1 {
            let pick = |value: u64, bit: u64| if index & bit != 0 { value } else { !value };
            result |= pick(a, 4) & pick(b, 2) & pick(c, 1);
        }
    }
    result
}

#[inline(always)]
fn funnel_left(low: u32, high: u32, amount: u32) -> u32 {
    (((u64::from(high) << 32 | u64::from(low)) << amount) >> 32) as u32
}

#[inline(always)]
fn funnel_right(low: u32, high: u32, amount: u32) -> u32 {
    ((u64::from(high) << 32 | u64::from(low)) >> amount) as u32
}

/// Returns the dot product of four pairs of bytes, plus `c`.
#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let byte = |v: u32, i: u32, signed: bool| {
        let byte = (v >> (8 * i)) as u8;
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    (0..4).fold(c, |sum, i| sum.wrapping_add((byte(a, i, a_signed) * byte(b, i, b_signed)) as u32))
}

#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, high: bool) -> u32 {
    let half = |v: u32, i: u32| {
        let half = (v >> (16 * i)) as u16;
        if a_signed { i32::from(half as i16) } else { i32::from(half) }
    };
    let byte = |i: u32| {
        let byte = (b >> (8 * (i + if high { 2 } else { 0 }))) as u8;
        if b_signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    (0..2).fold(c, |sum, i| sum.wrapping_add(half(a, i).wrapping_mul(byte(i)) as u32))
}

operations! {
    Mov32(a: u32) -> u32 [same] { a }
    Mov64(a: u64) -> u64 [same] { a }
    Add32(a: u32, b: u32) -> u32 [sum] { a.wrapping_add(b) }
    Add64(a: u64, b: u64) -> u64 [sum] { a.wrapping_add(b) }
    Sub32(a: u32, b: u32) -> u32 [difference] { a.wrapping_sub(b) }
    Sub64(a: u64, b: u64) -> u64 [difference] { a.wrapping_sub(b) }
    AddSat32(a: i32, b: i32) -> i32 { a.saturating_add(b) }
    SubSat32(a: i32, b: i32) -> i32 { a.saturating_sub(b) }
    Mul32(a: u32, b: u32) -> u32 [product] { a.wrapping_mul(b) }
    Mul64(a: u64, b: u64) -> u64 [product] { a.wrapping_mul(b) }
    MulHiU16(a: u32, b: u32) -> u32 { ((a & 0xffff) * (b & 0xffff)) >> 16 }
    MulHiS16(a: u32, b: u32) -> u32 { ((i32::from(a as i16) * i32::from(b as i16)) >> 16) as u32 }
    MulHiU32(a: u32, b: u32) -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 }
    MulHiS32(a: i32, b: i32) -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 }
    MulHiU64(a: u64, b: u64) -> u64 { ((u128::from(a) * u128::from(b)) >> 64) as u64 }
    MulHiS64(a: i64, b: i64) -> i64 { ((i128::from(a) * i128::from(b)) >> 64) as i64 }
    MulWideU16(a: u32, b: u32) -> u32 { (a & 0xffff) * (b & 0xffff) }
    MulWideS16(a: u32, b: u32) -> u32 { (i32::from(a as i16) * i32::from(b as i16)) as u32 }
    MulWideU32(a: u32, b: u32) -> u64 [wide_product_u] { u64::from(a) * u64::from(b) }
    MulWideS32(a: i32, b: i32) -> i64 [wide_product_s] { i64::from(a) * i64::from(b) }
    Mul24LoU(a: u32, b: u32) -> u32 { (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff) }
    Mul24LoS(a: i32, b: i32) -> i32 { (a << 8 >> 8).wrapping_mul(b << 8 >> 8) }
    Mul24HiU(a: u32, b: u32) -> u32 { ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32 }
    Mul24HiS(a: i32, b: i32) -> i32 { ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32 }
    Mad32(a: u32, b: u32, c: u32) -> u32 [product_sum] { a.wrapping_mul(b).wrapping_add(c) }
    Mad64(a: u64, b: u64, c: u64) -> u64 [product_sum] { a.wrapping_mul(b).wrapping_add(c) }
    MadWideU16(a: u32, b: u32, c: u32) -> u32 { ((a & 0xffff) * (b & 0xffff)).wrapping_add(c) }
    MadWideS16(a: u32, b: u32, c: u32) -> u32 { ((i32::from(a as i16) * i32::from(b as i16)) as u32).wrapping_add(c) }
    MadWideU32(a: u32, b: u32, c: u64) -> u64 [wide_product_sum_u] { (u64::from(a) * u64::from(b)).wrapping_add(c) }
    MadWideS32(a: i32, b: i32, c: i64) -> i64 [wide_product_sum_s] { (i64::from(a) * i64::from(b)).wrapping_add(c) }
    MadHiSatS32(a: i32, b: i32, c: i32) -> i32 { (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c) }
    // As on hardware, division by zero does not trap. The quotient is all ones and the remainder is the dividend.
    DivU16(a: u32, b: u32) -> u32 { (a & 0xffff).checked_div(b & 0xffff).unwrap_or(u32::MAX) }
    DivS16(a: u32, b: u32) -> u32 { if b as u16 == 0 { u32::MAX } else { (a as i16).wrapping_div(b as i16) as u32 } }
    DivU32(a: u32, b: u32) -> u32 { a.checked_div(b).unwrap_or(u32::MAX) }
    DivS32(a: i32, b: i32) -> i32 { if b == 0 { -1 } else { a.wrapping_div(b) } }
    DivU64(a: u64, b: u64) -> u64 { a.checked_div(b).unwrap_or(u64::MAX) }
    DivS64(a: i64, b: i64) -> i64 { if b == 0 { -1 } else { a.wrapping_div(b) } }
    RemU16(a: u32, b: u32) -> u32 { (a & 0xffff).checked_rem(b & 0xffff).unwrap_or(a) }
    RemS16(a: u32, b: u32) -> u32 { if b as u16 == 0 { a } else { (a as i16).wrapping_rem(b as i16) as u32 } }
    RemU32(a: u32, b: u32) -> u32 { a.checked_rem(b).unwrap_or(a) }
    RemS32(a: i32, b: i32) -> i32 { if b == 0 { a } else { a.wrapping_rem(b) } }
    RemU64(a: u64, b: u64) -> u64 { a.checked_rem(b).unwrap_or(a) }
    RemS64(a: i64, b: i64) -> i64 { if b == 0 { a } else { a.wrapping_rem(b) } }
    Abs16(a: u32) -> u32 { (a as i16).wrapping_abs() as u32 }
    Abs32(a: i32) -> i32 { a.wrapping_abs() }
    Abs64(a: i64) -> i64 { a.wrapping_abs() }
    Neg32(a: u32) -> u32 { a.wrapping_neg() }
    Neg64(a: u64) -> u64 { a.wrapping_neg() }
    MinU16(a: u32, b: u32) -> u32 { (a & 0xffff).min(b & 0xffff) }
    MaxU16(a: u32, b: u32) -> u32 { (a & 0xffff).max(b & 0xffff) }
    MinS16(a: u32, b: u32) -> u32 { (a as i16).min(b as i16) as u32 }
    MaxS16(a: u32, b: u32) -> u32 { (a as i16).max(b as i16) as u32 }
    MinU32(a: u32, b: u32) -> u32 { a.min(b) }
    MaxU32(a: u32, b: u32) -> u32 { a.max(b) }
    MinS32(a: i32, b: i32) -> i32 { a.min(b) }
    MaxS32(a: i32, b: i32) -> i32 { a.max(b) }
    MinU64(a: u64, b: u64) -> u64 { a.min(b) }
    MaxU64(a: u64, b: u64) -> u64 { a.max(b) }
    MinS64(a: i64, b: i64) -> i64 { a.min(b) }
    MaxS64(a: i64, b: i64) -> i64 { a.max(b) }
    SadU16(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add((a & 0xffff).abs_diff(b & 0xffff)) }
    SadS16(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add(u32::from((a as i16).abs_diff(b as i16))) }
    SadU32(a: u32, b: u32, c: u32) -> u32 { c.wrapping_add(a.abs_diff(b)) }
    SadS32(a: i32, b: i32, c: u32) -> u32 { c.wrapping_add(a.abs_diff(b)) }
    SadU64(a: u64, b: u64, c: u64) -> u64 { c.wrapping_add(a.abs_diff(b)) }
    SadS64(a: i64, b: i64, c: u64) -> u64 { c.wrapping_add(a.abs_diff(b)) }
    And32(a: u32, b: u32) -> u32 { a & b }
    And64(a: u64, b: u64) -> u64 { a & b }
    Or32(a: u32, b: u32) -> u32 { a | b }
    Or64(a: u64, b: u64) -> u64 { a | b }
    Xor32(a: u32, b: u32) -> u32 { a ^ b }
    Xor64(a: u64, b: u64) -> u64 { a ^ b }
    Not32(a: u32) -> u32 { !a }
    Not64(a: u64) -> u64 { !a }
    CNot16(a: u32) -> u32 { u32::from(a as u16 == 0) }
    CNot32(a: u32) -> u32 { u32::from(a == 0) }
    CNot64(a: u64) -> u64 { u64::from(a == 0) }
    // A shift distance greater than the width acts like the width.
    Shl16(a: u32, b: u32) -> u32 { if b > 15 { 0 } else { a << b } }
    Shl32(a: u32, b: u32) -> u32 [shift_left_32] { if b > 31 { 0 } else { a << b } }
    Shl64(a: u64, b: u32) -> u64 [shift_left_64] { if b > 63 { 0 } else { a << b } }
    ShrU16(a: u32, b: u32) -> u32 { if b > 15 { 0 } else { (a & 0xffff) >> b } }
    ShrU32(a: u32, b: u32) -> u32 { if b > 31 { 0 } else { a >> b } }
    ShrU64(a: u64, b: u32) -> u64 { if b > 63 { 0 } else { a >> b } }
    ShrS16(a: u32, b: u32) -> u32 { (a as i16 >> b.min(15)) as u32 }
    ShrS32(a: i32, b: u32) -> i32 { a >> b.min(31) }
    ShrS64(a: i64, b: u32) -> i64 [shift_right_s64] { a >> b.min(63) }
    ShfLClamp(a: u32, b: u32, c: u32) -> u32 { funnel_left(a, b, c.min(32)) }
    ShfLWrap(a: u32, b: u32, c: u32) -> u32 { funnel_left(a, b, c & 31) }
    ShfRClamp(a: u32, b: u32, c: u32) -> u32 { funnel_right(a, b, c.min(32)) }
    ShfRWrap(a: u32, b: u32, c: u32) -> u32 { funnel_right(a, b, c & 31) }
    Popc32(a: u32) -> u32 { a.count_ones() }
    Popc64(a: u64) -> u32 { a.count_ones() }
    Clz32(a: u32) -> u32 { a.leading_zeros() }
    Clz64(a: u64) -> u32 { a.leading_zeros() }
    Brev32(a: u32) -> u32 { a.reverse_bits() }
    Brev64(a: u64) -> u64 { a.reverse_bits() }
    BfindU32(a: u32) -> u32 { 31u32.wrapping_sub(a.leading_zeros()) }
    BfindU64(a: u64) -> u32 { 63u32.wrapping_sub(a.leading_zeros()) }
    BfindS32(a: i32) -> u32 { 31u32.wrapping_sub((if a < 0 { !a } else { a }).leading_zeros()) }
    BfindS64(a: i64) -> u32 { 63u32.wrapping_sub((if a < 0 { !a } else { a }).leading_zeros()) }
    // These return the distance from the top bit instead of the position.
    BfindShiftU32(a: u32) -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }
    BfindShiftU64(a: u64) -> u32 { if a == 0 { u32::MAX } else { a.leading_zeros() } }
    BfindShiftS32(a: i32) -> u32 { BfindShiftU32::f((if a < 0 { !a } else { a }) as u32) }
    BfindShiftS64(a: i64) -> u32 { BfindShiftU64::f((if a < 0 { !a } else { a }) as u64) }
    BfeU32(a: u32, b: u32, c: u32) -> u32 { extract(a.into(), b, c, 32, false) as u32 }
    BfeS32(a: u32, b: u32, c: u32) -> u32 { extract(a.into(), b, c, 32, true) as u32 }
    BfeU64(a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, false) }
    BfeS64(a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, true) }
    BmskClamp(a: u32, b: u32) -> u32 { insert(u32::MAX.into(), 0, a.min(255), b.min(255), 32) as u32 }
    BmskWrap(a: u32, b: u32) -> u32 { (((1u64 << (b & 31)) - 1) << (a & 31)) as u32 }
    Szext32(a: i32, b: u32) -> i32 { if b > 31 { a } else if b == 0 { 0 } else { a << (32 - b) >> (32 - b) } }
    Uzext32(a: u32, b: u32) -> u32 { if b > 31 { a } else { a & ((1 << b) - 1) } }
    Prmt(a: u32, b: u32, c: u32) -> u32 { permute(a, b, c) }
    PrmtF4e(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[0][c as usize & 3]) }
    PrmtB4e(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[1][c as usize & 3]) }
    PrmtRc8(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[2][c as usize & 3]) }
    PrmtEcl(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[3][c as usize & 3]) }
    PrmtEcr(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[4][c as usize & 3]) }
    PrmtRc16(a: u32, b: u32, c: u32) -> u32 { permute(a, b, PERMUTE_MODES[5][c as usize & 3]) }
    Dp4aUU(a: u32, b: u32, c: u32) -> u32 { dot4(a, b, c, false, false) }
    Dp4aUS(a: u32, b: u32, c: u32) -> u32 { dot4(a, b, c, false, true) }
    Dp4aSU(a: u32, b: u32, c: u32) -> u32 { dot4(a, b, c, true, false) }
    Dp4aSS(a: u32, b: u32, c: u32) -> u32 { dot4(a, b, c, true, true) }
    SlctS32(a: u32, b: u32, c: i32) -> u32 { if c >= 0 { a } else { b } }
    SlctF32(a: u32, b: u32, c: f32) -> u32 { if c >= 0.0 { a } else { b } }
    Slct64S32(a: u64, b: u64, c: i32) -> u64 { if c >= 0 { a } else { b } }
    Slct64F32(a: u64, b: u64, c: f32) -> u64 { if c >= 0.0 { a } else { b } }
    // These move values between a register and the parts of another register.
    Pack16(a: u32, b: u32) -> u32 { a & 0xffff | b << 16 }
    Pack32(a: u32, b: u32) -> u64 { u64::from(a) | u64::from(b) << 32 }
    Low16(a: u32) -> u32 { a & 0xffff }
    High16(a: u32) -> u32 { a >> 16 }
    Low32(a: u64) -> u32 [same] { a as u32 }
    High32(a: u64) -> u32 { (a >> 32) as u32 }
    Shr16Of64(a: u64, b: u32) -> u32 { (a >> b) as u32 & 0xffff }
    // These convert integers. `convert` has conversions with floats and saturation.
    SignExtend8(a: u32) -> u32 { a as i8 as u32 }
    ZeroExtend8(a: u32) -> u32 { a & 0xff }
    SignExtend16(a: u32) -> u32 { a as i16 as u32 }
    SignExtend32(a: i32) -> i64 [sign_extension] { a.into() }
    ZeroExtend32(a: u32) -> u64 [zero_extension] { a.into() }
}

tests! {
    EqB16(a, b: u32) { a as u16 == b as u16 }
    NeB16(a, b: u32) { a as u16 != b as u16 }
    LtU16(a, b: u32) { (a as u16) < b as u16 }
    LeU16(a, b: u32) { a as u16 <= b as u16 }
    LtS16(a, b: u32) { (a as i16) < b as i16 }
    LeS16(a, b: u32) { a as i16 <= b as i16 }
    EqB32(a, b: u32) { a == b }
    NeB32(a, b: u32) { a != b }
    LtU32(a, b: u32) [Unsigned32] { a < b }
    LeU32(a, b: u32) [Unsigned32] { a <= b }
    LtS32(a, b: i32) [Signed32] { a < b }
    LeS32(a, b: i32) [Signed32] { a <= b }
    EqB64(a, b: u64) { a == b }
    NeB64(a, b: u64) { a != b }
    LtU64(a, b: u64) { a < b }
    LeU64(a, b: u64) { a <= b }
    LtS64(a, b: i64) [Signed64] { a < b }
    LeS64(a, b: i64) [Signed64] { a <= b }
}

/// The handler of `bfi`: it inserts `a` into `b` at bit `c`, with `e` bits.
pub struct Bfi32;

impl Handler for Bfi32 {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        bfi::<u32>(block, inst, mask, |a, b, pos, len| insert(a.into(), b.into(), pos, len, 32) as u32)
    }
}

pub struct Bfi64;

impl Handler for Bfi64 {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        bfi::<u64>(block, inst, mask, |a, b, pos, len| insert(a, b, pos, len, 64))
    }
}

#[inline(always)]
fn bfi<T: Lane>(block: &mut Block, inst: &Inst, mask: u32, f: impl Fn(T, T, u32, u32) -> T) -> Step {
    let (a, b) = (block.src::<T>(inst.a), block.src::<T>(inst.b));
    let (pos, len) = (block.src::<u32>(inst.c), block.src::<u32>(inst.e));
    let mut d = [T::default(); LANES];
    for lane in 0..LANES {
        d[lane] = f(a[lane], b[lane], pos[lane], len[lane]);
    }
    block.set(inst.d, &d, mask);
    Step::Next
}

/// The handler of `lop3` with its table in `imm`.
pub struct Lop3Table;

impl Handler for Lop3Table {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let [a, b, c] = [inst.a, inst.b, inst.c].map(|operand| block.src::<u32>(operand));
        let mut d = [0; LANES];
        for lane in 0..LANES {
            d[lane] = lookup(a[lane].into(), b[lane].into(), c[lane].into(), inst.imm as u64) as u32;
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}

/// The handler of `dp2a`. Bits of `mods`: 1 for signed `a`, 2 for signed `b`, 4 for the high half of `b`.
pub struct Dp2a;

impl Handler for Dp2a {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let [a, b, c] = [inst.a, inst.b, inst.c].map(|operand| block.src::<u32>(operand));
        let [a_signed, b_signed, high] = [1, 2, 4].map(|bit| inst.mods & bit != 0);
        let mut d = [0; LANES];
        for lane in 0..LANES {
            d[lane] = dot2(a[lane], b[lane], c[lane], a_signed, b_signed, high);
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }
}

/// The handler of additions with the condition code: `d = a + b (+ carry)`. The carry out is the predicate `d2`, and
/// the carry in is the predicate `c`. If `mods` is 1, it subtracts. The carry of a subtraction is that of `a + !b + 1`.
/// It is set if nothing was borrowed, which is what compilers expect when they read it with `addc`.
pub struct Carry<T>(std::marker::PhantomData<T>);

/// The integer widths that have carry chains.
pub trait Width: Lane {
    fn add(self, other: Self, carry: bool) -> (Self, bool);
    fn inverted(self) -> Self;
}

macro_rules! widths {
    ($($ty:ty),*) => {$(
        impl Width for $ty {
            #[inline(always)]
            fn add(self, other: Self, carry: bool) -> (Self, bool) {
                let (sum, first) = self.overflowing_add(other);
                let (sum, second) = sum.overflowing_add(carry.into());
                (sum, first | second)
            }
            #[inline(always)]
            fn inverted(self) -> Self {
                !self
            }
        }
    )*};
}

widths!(u32, u64);

impl<T: Width> Handler for Carry<T> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let subtract = inst.mods & 1 == 1;
        let carry = match inst.c {
            NONE if subtract => ALL,
            NONE => 0,
            operand => block.pred(operand),
        };
        let (a, b) = (block.src::<T>(inst.a), block.src::<T>(inst.b));
        let (mut d, mut out) = ([T::default(); LANES], 0);
        for lane in 0..LANES {
            let b = if subtract { b[lane].inverted() } else { b[lane] };
            let (value, overflow) = a[lane].add(b, carry >> lane & 1 == 1);
            d[lane] = value;
            out |= u32::from(overflow) << lane;
        }
        block.set(inst.d, &d, mask);
        block.set_pred(inst.d2, out, mask);
        Step::Next
    }
}
