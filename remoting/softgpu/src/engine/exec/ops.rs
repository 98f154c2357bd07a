//! Handlers of instructions that compute each lane independently.

use std::marker::PhantomData;

use super::affine::{self, Affine, Order, Rule};
use super::lanes::{ALL, LANES, Lane, pack, set_lanes};
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

pub trait Op1 {
    type A: Lane;
    type D: Lane;
    /// The rule for operands that are affine but not all uniform.
    const RULE: Rule = affine::never;
    fn f(a: Self::A) -> Self::D;
}

pub trait Op2 {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    /// The rule for operands that are affine but not all uniform.
    const RULE: Rule = affine::never;
    fn f(a: Self::A, b: Self::B) -> Self::D;
}

pub trait Op3 {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    /// The rule for operands that are affine but not all uniform.
    const RULE: Rule = affine::never;
    fn f(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison of two values.
pub trait Test {
    type A: Lane;
    /// The order of the compared numbers. Set this only if a result that is the same at both ends of a range holds in
    /// the whole range.
    const ORDER: Order = Order::Other;
    fn f(a: Self::A, b: Self::A) -> bool;
}

/// Defines operations with one to three sources: `Name(a: u32) -> u32 { ... }`. `[rule]` before the body is the rule
/// for affine operands.
macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),+) -> $result:ty $([$rule:ident])? $body:block)*) => {$(
        $(#[$meta])*
        pub struct $name;
        $crate::engine::exec::ops::operation!($name, ($($arg: $ty),+), $result, [$($rule)?], $body);
    )*};
}

macro_rules! operation {
    ($name:ident, ($a:ident: $ta:ty), $d:ty, [$($rule:ident)?], $body:block) => {
        impl $crate::engine::exec::ops::Op1 for $name {
            type A = $ta;
            type D = $d;
            $(const RULE: $crate::engine::exec::affine::Rule = $crate::engine::exec::affine::$rule;)?
            #[inline(always)]
            fn f($a: $ta) -> $d $body
        }
    };
    ($name:ident, ($a:ident: $ta:ty, $b:ident: $tb:ty), $d:ty, [$($rule:ident)?], $body:block) => {
        impl $crate::engine::exec::ops::Op2 for $name {
            type A = $ta;
            type B = $tb;
            type D = $d;
            $(const RULE: $crate::engine::exec::affine::Rule = $crate::engine::exec::affine::$rule;)?
            #[inline(always)]
            fn f($a: $ta, $b: $tb) -> $d $body
        }
    };
    ($name:ident, ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty), $d:ty, [$($rule:ident)?], $body:block) => {
        impl $crate::engine::exec::ops::Op3 for $name {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type D = $d;
            $(const RULE: $crate::engine::exec::affine::Rule = $crate::engine::exec::affine::$rule;)?
            #[inline(always)]
            fn f($a: $ta, $b: $tb, $c: $tc) -> $d $body
        }
    };
}

/// Defines comparisons: `Name(a, b: u32) { ... }`. `[order]` before the body means that affine operands can be
/// compared.
macro_rules! tests {
    ($($name:ident($a:ident, $b:ident: $ty:ty) $([$order:ident])? $body:block)*) => {$(
        pub struct $name;
        impl $crate::engine::exec::ops::Test for $name {
            type A = $ty;
            $(const ORDER: $crate::engine::exec::affine::Order = $crate::engine::exec::affine::Order::$order;)?
            #[inline(always)]
            fn f($a: $ty, $b: $ty) -> bool $body
        }
    )*};
}

pub(crate) use {operation, operations, tests};

/// The handler of `d = f(a)`.
pub struct Un<O>(PhantomData<O>);

impl<O: Op1> Handler for Un<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let a = block.src::<O::A>(inst.a);
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::f(a[lane]);
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        if let Some(a) = block.affine::<O::A>(inst.a) {
            let uniform = || Affine::uniform(O::f(O::A::from_bits(a.base)).to_bits());
            let none = Affine::default();
            let d = if a.is_uniform() { Some(uniform()) } else { O::RULE([a, none, none], block.last()) };
            if let Some(d) = d {
                block.set_affine::<O::D>(inst.d, d);
                return Step::Next;
            }
        }
        block.run_rows(inst)
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let (a, d) = (block.rows::<O::A>(inst.a, 0), block.target_rows::<O::D>(inst.d));
        let registers = &mut block.registers;
        for warp in 0..registers.warps() {
            let a = registers.get(a, warp);
            let mut row = [O::D::default(); LANES];
            for lane in 0..LANES {
                row[lane] = O::f(a[lane]);
            }
            *registers.get_mut(d, warp) = row;
        }
        Step::Next
    }
}

/// The handler of `d = f(a, b)`.
pub struct Bin<O>(PhantomData<O>);

impl<O: Op2> Handler for Bin<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (a, b) = (block.src::<O::A>(inst.a), block.src::<O::B>(inst.b));
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::f(a[lane], b[lane]);
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        if let (Some(a), Some(b)) = (block.affine::<O::A>(inst.a), block.affine::<O::B>(inst.b)) {
            let uniform = || Affine::uniform(O::f(O::A::from_bits(a.base), O::B::from_bits(b.base)).to_bits());
            let rule = || O::RULE([a, b, Affine::default()], block.last());
            if let Some(d) = if a.is_uniform() && b.is_uniform() { Some(uniform()) } else { rule() } {
                block.set_affine::<O::D>(inst.d, d);
                return Step::Next;
            }
        }
        block.run_rows(inst)
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let (a, b) = (block.rows::<O::A>(inst.a, 0), block.rows::<O::B>(inst.b, 1));
        let d = block.target_rows::<O::D>(inst.d);
        let registers = &mut block.registers;
        for warp in 0..registers.warps() {
            let (a, b) = (registers.get(a, warp), registers.get(b, warp));
            let mut row = [O::D::default(); LANES];
            for lane in 0..LANES {
                row[lane] = O::f(a[lane], b[lane]);
            }
            *registers.get_mut(d, warp) = row;
        }
        Step::Next
    }
}

/// The handler of `d = f(a, b, c)`.
pub struct Tri<O>(PhantomData<O>);

impl<O: Op3> Handler for Tri<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (a, b, c) = (block.src::<O::A>(inst.a), block.src::<O::B>(inst.b), block.src::<O::C>(inst.c));
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::f(a[lane], b[lane], c[lane]);
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let sources = (block.affine::<O::A>(inst.a), block.affine::<O::B>(inst.b), block.affine::<O::C>(inst.c));
        if let (Some(a), Some(b), Some(c)) = sources {
            let uniform = || {
                let (a, b, c) = (O::A::from_bits(a.base), O::B::from_bits(b.base), O::C::from_bits(c.base));
                Affine::uniform(O::f(a, b, c).to_bits())
            };
            let rule = || O::RULE([a, b, c], block.last());
            if let Some(d) = if a.is_uniform() && b.is_uniform() && c.is_uniform() { Some(uniform()) } else { rule() } {
                block.set_affine::<O::D>(inst.d, d);
                return Step::Next;
            }
        }
        block.run_rows(inst)
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let (a, b) = (block.rows::<O::A>(inst.a, 0), block.rows::<O::B>(inst.b, 1));
        let (c, d) = (block.rows::<O::C>(inst.c, 2), block.target_rows::<O::D>(inst.d));
        let registers = &mut block.registers;
        for warp in 0..registers.warps() {
            let (a, b) = (registers.get(a, warp), registers.get(b, warp));
            let c = registers.get(c, warp);
            let mut row = [O::D::default(); LANES];
            for lane in 0..LANES {
                row[lane] = O::f(a[lane], b[lane], c[lane]);
            }
            *registers.get_mut(d, warp) = row;
        }
        Step::Next
    }
}

/// The handler of `d = f(a)` for a slow function, which is computed only in the lanes of the mask.
pub struct SlowUn<O>(PhantomData<O>);

impl<O: Op1> Handler for SlowUn<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let a = block.src::<O::A>(inst.a);
        let mut d = [O::D::default(); LANES];
        set_lanes(mask).for_each(|lane| d[lane] = O::f(a[lane]));
        block.set(inst.d, &d, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let Some(a) = block.affine::<O::A>(inst.a).filter(|a| a.is_uniform()) else { return block.run_rows(inst) };
        let value = O::f(O::A::from_bits(a.base));
        block.set_affine::<O::D>(inst.d, Affine::uniform(value.to_bits()));
        Step::Next
    }
}

/// The operations with which `setp` combines its comparison and a predicate operand, in the instruction's `mods`.
pub mod combine {
    pub const NONE: u32 = 0;
    pub const AND: u32 = 1;
    pub const OR: u32 = 2;
    pub const XOR: u32 = 3;

    #[inline(always)]
    pub fn join(how: u32, truth: u32, other: u32) -> u32 {
        match how {
            AND => truth & other,
            OR => truth | other,
            XOR => truth ^ other,
            _ => truth,
        }
    }
}

/// The handler of `setp`: `d = test(a, b) op c`, `d2 = !test(a, b) op c`.
pub struct SetP<O>(PhantomData<O>);

impl<O: Test> Handler for SetP<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (a, b) = (block.src::<O::A>(inst.a), block.src::<O::A>(inst.b));
        let truth = pack(|lane| O::f(a[lane], b[lane]));
        let c = block.pred(inst.c);
        block.set_pred(inst.d, combine::join(inst.mods, truth, c), mask);
        block.set_pred(inst.d2, combine::join(inst.mods, !truth, c), mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let mut everywhere = None;
        if let (Some(a), Some(b)) = (block.affine::<O::A>(inst.a), block.affine::<O::A>(inst.b)) {
            let test = |[a, b]: [u64; 2]| O::f(O::A::from_bits(a), O::A::from_bits(b));
            let first = test([a.base, b.base]);
            let same = (a.is_uniform() && b.is_uniform())
                || affine::corners(a, b, O::ORDER, block.last())
                    .is_some_and(|corners| corners.into_iter().all(|corner| test(corner) == first));
            everywhere = same.then_some(if first { ALL } else { 0 });
        }
        if let Some(truth) = everywhere {
            for warp in 0..block.registers.warps() as u32 {
                set_both(block, inst, warp, truth);
            }
            return Step::Next;
        }
        block.run_rows(inst)
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let (a, b) = (block.rows::<O::A>(inst.a, 0), block.rows::<O::A>(inst.b, 1));
        for warp in 0..block.registers.warps() {
            let (a, b) = (block.registers.get(a, warp), block.registers.get(b, warp));
            let truth = pack(|lane| O::f(a[lane], b[lane]));
            set_both(block, inst, warp as u32, truth);
        }
        Step::Next
    }
}

/// Sets both destinations of a comparison, for one warp of a block in lockstep.
#[inline(always)]
fn set_both(block: &mut Block, inst: &Inst, warp: u32, truth: u32) {
    let c = block.pred_of(inst.c, warp);
    block.set_pred_of(inst.d, warp, combine::join(inst.mods, truth, c));
    block.set_pred_of(inst.d2, warp, combine::join(inst.mods, !truth, c));
}

/// The handler of `selp`: `d = p ? a : b`, for 32- and 64-bit values.
pub struct Select<T>(PhantomData<T>);

impl<T: Lane> Handler for Select<T> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let p = block.pred(inst.c);
        let (a, b) = (block.src::<T>(inst.a), block.src::<T>(inst.b));
        let mut d = [T::default(); LANES];
        for lane in 0..LANES {
            d[lane] = if p >> lane & 1 == 1 { a[lane] } else { b[lane] };
        }
        block.set(inst.d, &d, mask);
        Step::Next
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let (a, b) = (block.rows::<T>(inst.a, 0), block.rows::<T>(inst.b, 1));
        let d = block.target_rows::<T>(inst.d);
        for warp in 0..block.registers.warps() {
            let p = block.pred_of(inst.c, warp as u32);
            let (a, b) = (block.registers.get(a, warp), block.registers.get(b, warp));
            let mut row = [T::default(); LANES];
            for lane in 0..LANES {
                row[lane] = if p >> lane & 1 == 1 { a[lane] } else { b[lane] };
            }
            *block.registers.get_mut(d, warp) = row;
        }
        Step::Next
    }
}

/// The handler of logic on predicates. Values of `mods`: 0 move, 1 and, 2 or, 3 xor, 4 not, 5 constant `imm`.
pub struct PredLogic;

impl Handler for PredLogic {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let value = logic(inst, block.pred(inst.a), block.pred(inst.b));
        block.set_pred(inst.d, value, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        for warp in 0..block.registers.warps() as u32 {
            let value = logic(inst, block.pred_of(inst.a, warp), block.pred_of(inst.b, warp));
            block.set_pred_of(inst.d, warp, value);
        }
        Step::Next
    }
}

#[inline(always)]
fn logic(inst: &Inst, a: u32, b: u32) -> u32 {
    match inst.mods {
        0 => a,
        combine::AND => a & b,
        combine::OR => a | b,
        combine::XOR => a ^ b,
        4 => !a,
        _ => (inst.imm as u32 & 1).wrapping_neg(),
    }
}
