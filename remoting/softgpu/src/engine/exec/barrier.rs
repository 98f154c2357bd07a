//! The barriers of a block (ISA 9.7.13.1). Arrivals are counted for each thread, so lanes may diverge or exit early.

use super::arrivals::Barrier;
pub use super::arrivals::CLUSTER;
use super::lanes::{ALL, LANES};
use super::warp::{Wait, Warp};
use super::{Block, Handler};
use crate::engine::code::{CONST, Inst, NONE, Step};

/// The kinds of `bar`. The low bits of `mods` are the number of one kind.
pub mod kind {
    pub const SYNC: u32 = 0;
    pub const ARRIVE: u32 = 1;
    pub const POPC: u32 = 2;
    pub const AND: u32 = 3;
    pub const OR: u32 = 4;
    /// `barrier.cluster.wait`, which uses a barrier that programs cannot name.
    pub const CLUSTER: u32 = 5;
}

impl Block<'_> {
    /// Returns the live lanes of each warp. The running warp is not in `warps`, so its lanes are read from `warp`.
    fn live_lanes(&self) -> impl Iterator<Item = u32> + '_ {
        let current = self.warp.id as usize;
        self.warps.iter().enumerate().map(move |(id, warp)| if id == current { self.warp.live } else { warp.live })
    }

    fn complete(&self, number: usize) -> bool {
        let barrier = &self.barriers[number];
        if barrier.is_open() {
            return false;
        }
        if barrier.expected == 0 {
            return self.live_lanes().zip(&barrier.arrived).all(|(live, &arrived)| live & !arrived == 0);
        }
        // A count that the program gives is in whole warps. In an arrived warp, lanes that exited or never existed are
        // counted too.
        let count = self.live_lanes().zip(&barrier.arrived).map(|(live, &arrived)| {
            if arrived != 0 && live & !arrived == 0 { LANES as u32 } else { arrived.count_ones() }
        });
        count.sum::<u32>() >= barrier.expected
    }

    /// Lets all groups that wait at a completed barrier continue.
    fn release(&mut self, number: usize) {
        self.released = true;
        let barrier = std::mem::take(&mut self.barriers[number]);
        let (mut count, mut all, mut any) = (0, true, false);
        for (&arrived, &truth) in barrier.arrived.iter().zip(&barrier.truths) {
            count += truth.count_ones();
            all &= truth == arrived;
            any |= truth != 0;
        }
        let (code, registers) = (self.launch.code, &mut self.registers);
        let mut wake = |warp: &mut Warp| {
            let mut woken = Vec::new();
            for group in warp.others.iter_mut().filter(|group| group.wait == Wait::Barrier(number as u8)) {
                group.wait = Wait::Nothing;
                woken.push((group.pc, group.mask, group.frame));
                group.pc += 1;
            }
            for (pc, mask, frame) in woken {
                let inst = &code.insts[pc as usize];
                let all_lanes = |truth: bool| if truth { ALL } else { 0 };
                let pred = match inst.mods & 7 {
                    kind::AND => all_lanes(all),
                    kind::OR => all_lanes(any),
                    kind::POPC => {
                        let row = registers.row_mut::<u32>(frame.slots + inst.d, warp.id);
                        super::lanes::set_lanes(mask).for_each(|lane| row[lane] = count);
                        continue;
                    }
                    _ => continue,
                };
                let row = registers.pred_mut(frame.preds + inst.d2, warp.id);
                *row = *row & !mask | pred & mask;
            }
            warp.set_stop();
        };
        self.warps.iter_mut().for_each(&mut wake);
        wake(&mut self.warp);
    }

    fn release_complete(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.barriers.len() {
            if self.complete(number) {
                self.release(number);
                any = true;
            }
        }
        any
    }

    /// Completes barriers that no longer have to wait for threads that exited.
    pub fn threads_left(&mut self) {
        self.release_complete();
    }
}

/// The handler of `bar.sync`, `bar.arrive` and `bar.red`. Operands: barrier number in `a`, thread count in `b` (or
/// none), predicate in `c`. The result of a reduction is in `d` or the predicate `d2`.
pub struct Bar;

impl Handler for Bar {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let lane = mask.trailing_zeros() as usize;
        let number = block.src::<u32>(inst.a)[lane] as usize;
        let expected = if inst.b == NONE { 0 } else { block.src::<u32>(inst.b)[lane] };
        if number >= CLUSTER && inst.mods & 7 != kind::CLUSTER {
            return block.fail(715, lane, format!("there is no barrier {number}"));
        }
        let truth = block.pred(inst.c);
        let (warp, warps) = (block.warp.id as usize, block.warps.len());
        block.barriers[number].arrive(warp, warps, mask, truth, expected);
        if inst.mods & 7 == kind::ARRIVE {
            if block.complete(number) {
                block.release(number);
            }
            return Step::Next;
        }
        // Set the lanes aside as waiting. If they completed the barrier, they are woken at once.
        let group = &mut block.warp.group;
        if group.mask != mask {
            let rest = super::warp::Group { mask: group.mask & !mask, pc: group.pc + 1, ..group.clone() };
            group.mask = mask;
            block.warp.set_aside(rest);
        }
        let mut waiting = std::mem::take(&mut block.warp.group);
        waiting.wait = Wait::Barrier(number as u8);
        block.warp.others.push(waiting);
        if block.complete(number) {
            block.release(number);
        }
        Step::Switch
    }

    /// Does nothing for a `bar.sync` of the whole block: all threads arrive together, so none of them waits. Executes
    /// any other barrier warp by warp.
    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let number = block.affine::<u32>(inst.a).filter(|_| inst.a & CONST != 0);
        let open = number.is_some_and(|n| block.barriers.get(n.base as usize).is_some_and(Barrier::is_open));
        if open && inst.b == NONE && inst.mods & 7 == kind::SYNC { Step::Next } else { block.each_warp(inst) }
    }
}
