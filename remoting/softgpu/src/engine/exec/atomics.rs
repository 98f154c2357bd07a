//! `atom` and `red` (ISA 9.7.13). Lanes are processed in order. Each lane uses an atomic of the host, because other
//! blocks run on other OS threads.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::half::{Op as HalfOp, compute};
use super::host::Host;
use super::lanes::{LANES, Lane, set_lanes};
use super::watched::Touch;
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};
use crate::engine::watch::Access;

/// An operation of `atom` or `red`. Its number is in the bits of `mods` from bit 8 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    Exchange,
    CompareExchange,
    Add,
    Inc,
    Dec,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    AddF,
    AddF16x2,
    AddBf16x2,
    AddF16,
    AddBf16,
    MinF16x2,
    MaxF16x2,
    MinBf16x2,
    MaxBf16x2,
    MinF16,
    MaxF16,
    MinBf16,
    MaxBf16,
}

const OPS: [Op; 25] = [
    Op::Exchange,
    Op::CompareExchange,
    Op::Add,
    Op::Inc,
    Op::Dec,
    Op::MinU,
    Op::MaxU,
    Op::MinS,
    Op::MaxS,
    Op::And,
    Op::Or,
    Op::Xor,
    Op::AddF,
    Op::AddF16x2,
    Op::AddBf16x2,
    Op::AddF16,
    Op::AddBf16,
    Op::MinF16x2,
    Op::MaxF16x2,
    Op::MinBf16x2,
    Op::MaxBf16x2,
    Op::MinF16,
    Op::MaxF16,
    Op::MinBf16,
    Op::MaxBf16,
];

/// A type of memory that can be updated atomically.
pub trait Cell: Copy + Eq {
    type Register: Lane;
    fn from_register(value: Self::Register) -> Self;
    fn to_register(self) -> Self::Register;
    /// Returns the new value of an operation, given the old value and the operands.
    fn apply(op: Op, old: Self, b: Self, c: Self) -> Self;
    /// Atomically replaces the value at an address by `f` of the value. Returns the old value.
    fn update(host: Host, f: impl Fn(Self) -> Self) -> Self;
}

macro_rules! cell {
    ($unsigned:ty, $signed:ty, $register:ty, $atomic:ty, $float:expr) => {
        impl Cell for $unsigned {
            type Register = $register;
            #[inline(always)]
            fn from_register(value: $register) -> Self {
                value as $unsigned
            }
            #[inline(always)]
            fn to_register(self) -> $register {
                self.into()
            }
            #[inline(always)]
            fn apply(op: Op, old: Self, b: Self, c: Self) -> Self {
                match op {
                    Op::Exchange => b,
                    Op::CompareExchange => {
                        if old == b {
                            c
                        } else {
                            old
                        }
                    }
                    Op::Add => old.wrapping_add(b),
                    Op::Inc => {
                        if old >= b {
                            0
                        } else {
                            old + 1
                        }
                    }
                    Op::Dec => {
                        if old == 0 || old > b {
                            b
                        } else {
                            old - 1
                        }
                    }
                    Op::MinU => old.min(b),
                    Op::MaxU => old.max(b),
                    Op::MinS => (old as $signed).min(b as $signed) as $unsigned,
                    Op::MaxS => (old as $signed).max(b as $signed) as $unsigned,
                    Op::And => old & b,
                    Op::Or => old | b,
                    Op::Xor => old ^ b,
                    other => $float(other, old, b),
                }
            }
            #[inline(always)]
            fn update(host: Host, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: `locate` found the address valid for the size and aligned; device memory is only accessed
                // through raw pointers.
                let cell = unsafe { <$atomic>::from_ptr(host.address() as *mut $unsigned) };
                let mut old = cell.load(Ordering::Relaxed);
                loop {
                    match cell.compare_exchange_weak(old, f(old), Ordering::AcqRel, Ordering::Relaxed) {
                        Ok(old) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    };
}

/// Returns the corresponding operation on 16-bit floats, and its flags.
fn half_op(op: Op) -> (HalfOp, u32) {
    let bf16 = super::half::flag::BF16;
    match op {
        Op::AddBf16 | Op::AddBf16x2 => (HalfOp::Add, bf16),
        Op::MinF16 | Op::MinF16x2 => (HalfOp::Min, 0),
        Op::MaxF16 | Op::MaxF16x2 => (HalfOp::Max, 0),
        Op::MinBf16 | Op::MinBf16x2 => (HalfOp::Min, bf16),
        Op::MaxBf16 | Op::MaxBf16x2 => (HalfOp::Max, bf16),
        _ => (HalfOp::Add, 0),
    }
}

fn float16(op: Op, old: u16, b: u16) -> u16 {
    let (op, flags) = half_op(op);
    compute(op, flags, old.into(), b.into(), 0) as u16
}

fn float32(op: Op, old: u32, b: u32) -> u32 {
    if op == Op::AddF {
        return super::number::canonical(f32::from_bits(old) + f32::from_bits(b)).to_bits();
    }
    let (op, flags) = half_op(op);
    let half = |shift: u32| (compute(op, flags, old >> shift & 0xffff, b >> shift & 0xffff, 0) & 0xffff) << shift;
    half(0) | half(16)
}

fn float64(_op: Op, old: u64, b: u64) -> u64 {
    (f64::from_bits(old) + f64::from_bits(b)).to_bits()
}

cell!(u16, i16, u32, AtomicU16, float16);
cell!(u32, i32, u32, AtomicU32, float32);
cell!(u64, i64, u64, AtomicU64, float64);

/// The handler of `atom` (result in `d`) and `red` (no `d`). The address is `a` + `imm`, and the operands are `b` and
/// `c`.
pub struct Atomic<T>(PhantomData<T>);

impl<T: Cell> Handler for Atomic<T> {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        block.touch_lanes(inst, size_of::<T>(), mask, Access::StrongWrite, touches);
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let op = OPS[inst.mods as usize >> 8];
        let addresses = match block.locate(inst, size_of::<T>() as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        let b = *block.src::<T::Register>(inst.b);
        let c = if inst.c == NONE { b } else { *block.src::<T::Register>(inst.c) };
        let mut d = [T::Register::default(); LANES];
        fence(Ordering::SeqCst);
        for lane in set_lanes(mask) {
            let (b, c) = (T::from_register(b[lane]), T::from_register(c[lane]));
            d[lane] = T::update(addresses[lane], |old| T::apply(op, old, b, c)).to_register();
        }
        fence(Ordering::SeqCst);
        if inst.d != NONE {
            block.set(inst.d, &d, mask);
        }
        Step::Next
    }
}

/// The handler of `atom.b128`. The address is `a` + `imm`. `sources` contains the halves of the operands, and `targets`
/// those of the result, if it has one. It is compiled only for processors that have the instruction.
pub struct AtomicWide;

impl Handler for AtomicWide {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let addresses = match block.locate(inst, size_of::<u128>() as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        let lists = &block.launch.code.lists;
        let operands = inst.sources.of(lists);
        let value = |block: &Block, at: usize, lane: usize| {
            let half = |at: usize| u128::from(block.src::<u64>(operands[at])[lane]);
            half(at) | half(at + 1) << 64
        };
        let swap = OPS[inst.mods as usize >> 8] == Op::Exchange;
        let (mut low, mut high) = ([0u64; LANES], [0u64; LANES]);
        fence(Ordering::SeqCst);
        for lane in set_lanes(mask) {
            let (first, last) = (value(block, 0, lane), value(block, operands.len() - 2, lane));
            let host = addresses[lane];
            let old = if swap { exchange(host, last) } else { replace(host, first, last) };
            (low[lane], high[lane]) = (old as u64, (old >> 64) as u64);
        }
        fence(Ordering::SeqCst);
        for (&target, half) in inst.targets.of(lists).iter().zip([&low, &high]) {
            block.set(target, half, mask);
        }
        Step::Next
    }
}

/// Writes `new` if the 16 bytes equal `expected`. Returns the old bytes.
fn replace(host: Host, expected: u128, new: u128) -> u128 {
    let (mut low, mut high) = (expected as u64, (expected >> 64) as u64);
    // SAFETY: as in `Cell::update`, for 16 bytes; a program that needs the instruction is refused where the processor
    // has none. The compiler keeps `rbx` for itself, so the code restores it. The address has a separate register.
    unsafe {
        asm!(
            "xchg {kept}, rbx", "lock cmpxchg16b [rdi]", "mov rbx, {kept}",
            kept = inout(reg) new as u64 => _, in("rdi") host.address(), in("rcx") (new >> 64) as u64,
            inout("rax") low, inout("rdx") high, options(nostack)
        );
    }
    u128::from(low) | u128::from(high) << 64
}

fn exchange(host: Host, new: u128) -> u128 {
    let mut expected = host.read_piece(size_of::<u128>());
    loop {
        match replace(host, expected, new) {
            old if old == expected => return old,
            old => expected = old,
        }
    }
}
