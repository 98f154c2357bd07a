//! Operations between the lanes of a warp (ISA 9.7.9.9, 9.7.13): `shfl`, `vote`, `match`, `redux`, `bar.warp`.
//!
//! A `.sync` operation waits until all live lanes of its member mask have reached such an operation. A lane stores its
//! values when it arrives, so groups that arrive from different places in the code can exchange values.

use std::marker::PhantomData;

use super::lanes::{LANES, pack, set_lanes};
use super::warp::{Group, Wait};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};

/// An operation between the lanes of a warp. Operand `e` is the member mask. Without it, only the running group takes
/// part.
pub trait Collective {
    /// Stores the values of the mask's lanes for the other lanes.
    fn hand_in(block: &mut Block, inst: &Inst, mask: u32);
    /// Computes the results of the lanes in `mask`. All lanes in `present` have stored their values.
    fn finish(block: &mut Block, inst: &Inst, mask: u32, present: u32);
}

pub struct Sync<C>(PhantomData<C>);

impl<C: Collective> Handler for Sync<C> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        C::hand_in(block, inst, mask);
        if inst.e == NONE || mask == block.warp.live {
            C::finish(block, inst, mask, mask);
            return Step::Next;
        }
        let members = block.src::<u32>(inst.e);
        let needed = set_lanes(mask).fold(0, |all, lane| all | members[lane]) & block.warp.live;
        let waiting = block.warp.others.iter().filter(|group| group.wait == Wait::Lanes);
        let arrived = waiting.fold(mask, |all, group| all | group.mask);
        if needed & !arrived != 0 {
            let group = &mut block.warp.group;
            if group.mask != mask {
                let rest = Group { mask: group.mask & !mask, pc: group.pc + 1, ..group.clone() };
                group.mask = mask;
                block.warp.set_aside(rest);
            }
            block.warp.group.wait = Wait::Lanes;
            return Step::Switch;
        }
        C::finish(block, inst, mask, arrived);
        // The groups that waited for these lanes can now finish too.
        block.wake_lanes(mask);
        Step::Next
    }
}

impl Block<'_> {
    /// Finishes the waiting groups whose missing lanes have now arrived or exited.
    fn wake_lanes(&mut self, arriving: u32) {
        let live = self.warp.live;
        let waiting = self.warp.others.iter().filter(|group| group.wait == Wait::Lanes);
        let arrived = waiting.fold(arriving, |all, group| all | group.mask);
        for index in 0..self.warp.others.len() {
            let group = &self.warp.others[index];
            if group.wait != Wait::Lanes {
                continue;
            }
            let inst = self.inst_at(group.pc);
            let (mask, frame) = (group.mask, group.frame);
            // Operands must be read in the frame of their own group.
            let mine = std::mem::replace(&mut self.warp.group.frame, frame);
            let members = self.src::<u32>(inst.e);
            let needed = set_lanes(mask).fold(0, |all, lane| all | members[lane]) & live;
            if needed & !arrived == 0 {
                finish_any(self, inst, mask, arrived);
                self.warp.others[index].wait = Wait::Nothing;
                self.warp.others[index].pc += 1;
            }
            self.warp.group.frame = mine;
        }
        self.warp.set_stop();
    }

    /// Finishes the groups that waited for lanes which have exited.
    pub fn lanes_left(&mut self) {
        if self.warp.others.iter().any(|group| group.wait == Wait::Lanes) {
            self.wake_lanes(0);
        }
    }
}

/// The numbers of the operations, which are in the low bits of `mods`. With them a waiting instruction can be finished
/// without its handler.
pub mod operation {
    pub const SHUFFLE: u32 = 0;
    pub const VOTE: u32 = 1;
    pub const MATCH: u32 = 2;
    pub const REDUCE: u32 = 3;
    pub const BARRIER: u32 = 4;
    pub const ELECT: u32 = 5;
    /// The position of the variant's lowest bit in `mods`. The bits below contain the operation.
    pub const SHIFT: u32 = 4;
}

fn finish_any(block: &mut Block, inst: &Inst, mask: u32, present: u32) {
    match inst.mods & 15 {
        operation::SHUFFLE => Shuffle::finish(block, inst, mask, present),
        operation::VOTE => Vote::finish(block, inst, mask, present),
        operation::MATCH => Match::finish(block, inst, mask, present),
        operation::REDUCE => Reduce::finish(block, inst, mask, present),
        operation::ELECT => Elect::finish(block, inst, mask, present),
        _ => {}
    }
}

fn hand_in_word(block: &mut Block, operand: u32, mask: u32) {
    let values = *block.src::<u32>(operand);
    set_lanes(mask).for_each(|lane| block.warp.handed[0][lane] = values[lane].into());
}

/// The handler of `shfl`: `d` (and the range predicate `d2`) from `a`, lane operand `b`, clamp and segment mask `c`.
/// The variants are up, down, bfly and idx.
pub struct Shuffle;

pub mod shuffle {
    pub const UP: u32 = 0;
    pub const DOWN: u32 = 1;
    pub const BFLY: u32 = 2;
}

impl Collective for Shuffle {
    #[inline(always)]
    fn hand_in(block: &mut Block, inst: &Inst, mask: u32) {
        hand_in_word(block, inst.a, mask);
    }

    #[inline(always)]
    fn finish(block: &mut Block, inst: &Inst, mask: u32, _present: u32) {
        let (bs, cs) = (block.src::<u32>(inst.b), block.src::<u32>(inst.c));
        let (mut d, mut in_range) = ([0; LANES], 0);
        for lane in 0..LANES {
            let (b, clamp, segment) = (bs[lane] & 31, cs[lane] & 31, cs[lane] >> 8 & 31);
            let me = lane as u32;
            let max = me & segment | clamp & !segment;
            let min = me & segment;
            let (from, valid) = match inst.mods >> operation::SHIFT {
                shuffle::UP => (me.wrapping_sub(b), me as i32 - b as i32 >= max as i32),
                shuffle::DOWN => (me + b, me + b <= max),
                shuffle::BFLY => (me ^ b, me ^ b <= max),
                _ => (min | b & !segment, min | b & !segment <= max),
            };
            let from = if valid { from } else { me };
            d[lane] = block.warp.handed[0][from as usize & 31] as u32;
            in_range |= u32::from(valid) << lane;
        }
        block.set(inst.d, &d, mask);
        block.set_pred(inst.d2, in_range, mask);
    }
}

/// The handler of `vote` and `activemask`. The predicate is `c`. The result is in `d2`, or in `d` for a ballot. The
/// variants are all, any, uni, ballot and active.
pub struct Vote;

pub mod vote {
    pub const ALL: u32 = 0;
    pub const ANY: u32 = 1;
    pub const BALLOT: u32 = 3;
    pub const ACTIVE: u32 = 4;
}

impl Collective for Vote {
    #[inline(always)]
    fn hand_in(block: &mut Block, inst: &Inst, mask: u32) {
        let truth = block.pred(inst.c);
        set_lanes(mask).for_each(|lane| block.warp.handed[0][lane] = u64::from(truth >> lane & 1));
    }

    #[inline(always)]
    fn finish(block: &mut Block, inst: &Inst, mask: u32, present: u32) {
        let handed = &block.warp.handed[0];
        let truth = pack(|lane| handed[lane] == 1) & present;
        if inst.mods >> operation::SHIFT == vote::ACTIVE {
            block.set(inst.d, &[mask; LANES], mask);
            return;
        }
        let members = if inst.e == NONE { [u32::MAX; LANES] } else { *block.src::<u32>(inst.e) };
        let (mut ballots, mut truths) = ([0; LANES], 0);
        for lane in 0..LANES {
            let who = members[lane] & present;
            let yes = truth & who;
            ballots[lane] = yes;
            let value = match inst.mods >> operation::SHIFT {
                vote::ALL => yes == who,
                vote::ANY => yes != 0,
                _ => yes == who || yes == 0,
            };
            truths |= u32::from(value) << lane;
        }
        if inst.mods >> operation::SHIFT == vote::BALLOT {
            block.set(inst.d, &ballots, mask);
        } else {
            block.set_pred(inst.d2, truths, mask);
        }
    }
}

/// The handler of `match`, which compares `a` between lanes. Bit 0 of the variant is `.all` (predicate in `d2`), and
/// bit 1 is 64-bit.
pub struct Match;

impl Collective for Match {
    #[inline(always)]
    fn hand_in(block: &mut Block, inst: &Inst, mask: u32) {
        if inst.mods >> operation::SHIFT & 2 == 0 {
            hand_in_word(block, inst.a, mask);
        } else {
            let values = *block.src::<u64>(inst.a);
            set_lanes(mask).for_each(|lane| block.warp.handed[0][lane] = values[lane]);
        }
    }

    #[inline(always)]
    fn finish(block: &mut Block, inst: &Inst, mask: u32, present: u32) {
        let handed = block.warp.handed[0];
        let members = *block.src::<u32>(inst.e);
        let (mut d, mut truths) = ([0; LANES], 0);
        for lane in set_lanes(mask) {
            let who = members[lane] & present;
            let same = set_lanes(who).filter(|&l| handed[l] == handed[lane]).fold(0, |all, l| all | 1 << l);
            d[lane] = same;
            if inst.mods >> operation::SHIFT & 1 == 1 {
                d[lane] = if same == who { who } else { 0 };
                truths |= u32::from(same == who) << lane;
            }
        }
        block.set(inst.d, &d, mask);
        block.set_pred(inst.d2, truths, mask);
    }
}

/// The handler of `redux`, which reduces `a` over the member lanes. The variants are add, min.u32, max.u32, min.s32,
/// max.s32, and, or, xor.
pub struct Reduce;

pub mod reduce {
    pub const ADD: u32 = 0;
    pub const MIN_U: u32 = 1;
    pub const MAX_U: u32 = 2;
    pub const MIN_S: u32 = 3;
    pub const MAX_S: u32 = 4;
    pub const AND: u32 = 5;
    pub const OR: u32 = 6;
    pub const XOR: u32 = 7;
}

impl Collective for Reduce {
    #[inline(always)]
    fn hand_in(block: &mut Block, inst: &Inst, mask: u32) {
        hand_in_word(block, inst.a, mask);
    }

    #[inline(always)]
    fn finish(block: &mut Block, inst: &Inst, mask: u32, present: u32) {
        let handed = block.warp.handed[0].map(|value| value as u32);
        let members = *block.src::<u32>(inst.e);
        let join = |a: u32, b: u32| match inst.mods >> operation::SHIFT {
            reduce::ADD => a.wrapping_add(b),
            reduce::MIN_U => a.min(b),
            reduce::MAX_U => a.max(b),
            reduce::MIN_S => (a as i32).min(b as i32) as u32,
            reduce::MAX_S => (a as i32).max(b as i32) as u32,
            reduce::AND => a & b,
            reduce::OR => a | b,
            _ => a ^ b,
        };
        let mut d = [0; LANES];
        for lane in set_lanes(mask) {
            d[lane] = set_lanes(members[lane] & present).map(|l| handed[l]).reduce(join).unwrap_or(0);
        }
        block.set(inst.d, &d, mask);
    }
}

/// The handler of `bar.warp.sync`.
pub struct WarpBarrier;

impl Collective for WarpBarrier {
    #[inline(always)]
    fn hand_in(_block: &mut Block, _inst: &Inst, _mask: u32) {}

    #[inline(always)]
    fn finish(_block: &mut Block, _inst: &Inst, _mask: u32, _present: u32) {}
}

/// The handler of `elect`, which chooses the lowest member lane. `d` gets the lane's number, and `d2` is true in this
/// lane.
pub struct Elect;

impl Collective for Elect {
    #[inline(always)]
    fn hand_in(_block: &mut Block, _inst: &Inst, _mask: u32) {}

    #[inline(always)]
    fn finish(block: &mut Block, inst: &Inst, mask: u32, present: u32) {
        let members = *block.src::<u32>(inst.e);
        let leaders = members.map(|members| (members & present).trailing_zeros());
        let chosen =
            set_lanes(mask).filter(|&lane| leaders[lane] as usize == lane).fold(0, |all, lane| all | 1 << lane);
        block.set(inst.d, &leaders, mask);
        block.set_pred(inst.d2, chosen, mask);
    }
}
