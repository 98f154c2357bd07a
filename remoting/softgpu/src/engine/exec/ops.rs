//! Handlers for instructions that compute each lane by itself.

use std::marker::PhantomData;

use super::lanes::{LANES, Lane, pack, set_lanes};
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

pub trait Op1 {
    type A: Lane;
    type D: Lane;
    fn f(a: Self::A) -> Self::D;
}

pub trait Op2 {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    fn f(a: Self::A, b: Self::B) -> Self::D;
}

pub trait Op3 {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    fn f(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison.
pub trait Test {
    type A: Lane;
    fn f(a: Self::A, b: Self::A) -> bool;
}

/// Defines operations: `Name(a: u32) -> u32 { ... }`, with one to three sources.
macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),+) -> $result:ty $body:block)*) => {$(
        $(#[$meta])*
        pub struct $name;
        $crate::engine::exec::ops::operation!($name, ($($arg: $ty),+), $result, $body);
    )*};
}

macro_rules! operation {
    ($name:ident, ($a:ident: $ta:ty), $d:ty, $body:block) => {
        impl $crate::engine::exec::ops::Op1 for $name {
            type A = $ta;
            type D = $d;
            #[inline(always)]
            fn f($a: $ta) -> $d $body
        }
    };
    ($name:ident, ($a:ident: $ta:ty, $b:ident: $tb:ty), $d:ty, $body:block) => {
        impl $crate::engine::exec::ops::Op2 for $name {
            type A = $ta;
            type B = $tb;
            type D = $d;
            #[inline(always)]
            fn f($a: $ta, $b: $tb) -> $d $body
        }
    };
    ($name:ident, ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty), $d:ty, $body:block) => {
        impl $crate::engine::exec::ops::Op3 for $name {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type D = $d;
            #[inline(always)]
            fn f($a: $ta, $b: $tb, $c: $tc) -> $d $body
        }
    };
}

/// Defines comparisons: `Name(a, b: u32) { ... }`.
macro_rules! tests {
    ($($name:ident($a:ident, $b:ident: $ty:ty) $body:block)*) => {$(
        pub struct $name;
        impl $crate::engine::exec::ops::Test for $name {
            type A = $ty;
            #[inline(always)]
            fn f($a: $ty, $b: $ty) -> bool $body
        }
    )*};
}

pub(crate) use {operation, operations, tests};

/// `d = f(a)`
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
}

/// `d = f(a, b)`
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
}

/// `d = f(a, b, c)`
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
}

/// `d = f(a)` for functions too slow to compute in lanes that do not ask.
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
}

/// How `setp` combines its comparison with a third, predicate operand: `mods` of the instruction.
pub mod combine {
    pub const NONE: u32 = 0;
    pub const AND: u32 = 1;
    pub const OR: u32 = 2;
    pub const XOR: u32 = 3;
}

/// `setp`: `d = test(a, b) op c`, `d2 = !test(a, b) op c`
pub struct SetP<O>(PhantomData<O>);

impl<O: Test> Handler for SetP<O> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (a, b) = (block.src::<O::A>(inst.a), block.src::<O::A>(inst.b));
        let truth = pack(|lane| O::f(a[lane], b[lane]));
        let c = block.pred(inst.c);
        let join = |t: u32| match inst.mods {
            combine::AND => t & c,
            combine::OR => t | c,
            combine::XOR => t ^ c,
            _ => t,
        };
        block.set_pred(inst.d, join(truth), mask);
        block.set_pred(inst.d2, join(!truth), mask);
        Step::Next
    }
}

/// `selp`, `d = p ? a : b`, for 32- and 64-bit values.
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
}

/// Logic on predicates. `mods`: 0 move, 1 and, 2 or, 3 xor, 4 not, 5 constant `imm`.
pub struct PredLogic;

impl Handler for PredLogic {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (a, b) = (block.pred(inst.a), block.pred(inst.b));
        let value = match inst.mods {
            0 => a,
            combine::AND => a & b,
            combine::OR => a | b,
            combine::XOR => a ^ b,
            4 => !a,
            _ => (inst.imm as u32 & 1).wrapping_neg(),
        };
        block.set_pred(inst.d, value, mask);
        Step::Next
    }
}
