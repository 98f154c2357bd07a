//! Execution of a block in lockstep. An instruction is executed once for all warps of the block. A value that is the
//! same in all threads, or affine in the thread's index, is computed once. Small blocks that do not wait for each
//! other's threads form teams, which run like one block.
//!
//! A block runs in lockstep while its warps are full, at the same pc and not in a called function. The `run_block`
//! functions of handlers may rely on this. An instruction without its own `run_block` is executed warp by warp. When
//! warps diverge, each runs on its own until all are at the same pc again.

use super::affine::{Affine, Last};
use super::in_step::Held;
use super::lanes::{ALL, LANES, Lane};
use super::registers::Rows;
use super::{Block, Turn};
use crate::engine::code::{CONST, Inst, NONE, NOT, Step};

impl Block<'_> {
    /// Returns the index of the last thread of a block, and of the last block that runs in lockstep.
    #[inline(always)]
    pub fn last(&self) -> Last {
        Last { thread: u64::from(self.block_warps) * LANES as u64 - 1, block: u64::from(self.team) - 1 }
    }

    /// Starts execution in lockstep if all warps are full and at the same place. Returns whether it started.
    pub fn fall_in(&mut self) -> bool {
        let (mut lead, turn) = (None, self.launch.turn);
        let together = self.warps.iter_mut().all(|warp| {
            warp.begin_turn(turn);
            let ready = (warp.group.mask != 0 || warp.choose()) && warp.is_whole() && warp.group.stack.is_empty();
            ready && lead.get_or_insert_with(|| warp.group.clone()).joins(&warp.group)
        });
        let Some(lead) = lead.filter(|_| together) else { return false };
        let slots = self.launch.code.functions[lead.frame.function as usize].slots as usize;
        let lockstep = &mut self.lockstep;
        lockstep.held.clear();
        lockstep.held.resize(slots, Held::Lanes);
        (lockstep.active, lockstep.pc, lockstep.frame) = (true, lead.pc, lead.frame);
        true
    }

    /// Ends execution in lockstep. Each warp then continues on its own.
    fn fall_out(&mut self) {
        for slot in 0..self.lockstep.held.len() as u32 {
            self.expand(slot);
        }
        self.lockstep.active = false;
    }

    /// Runs until the turn is over or the warps diverge.
    pub fn run_in_step(&mut self) -> Turn {
        let code = self.launch.code;
        self.lockstep.budget = self.launch.turn;
        loop {
            let inst = &code.insts[self.lockstep.pc as usize];
            let step = if inst.guard == NONE {
                (inst.exec.block)(self, inst)
            } else {
                let guards = (0..self.warps.len() as u32).map(|warp| self.pred_of(inst.guard, warp));
                match guards.fold((true, false), |(all, any), guard| (all && guard == ALL, any || guard != 0)) {
                    (true, _) => (inst.exec.block)(self, inst),
                    (_, false) => Step::Next,
                    _ => self.each_warp(inst),
                }
            };
            match step {
                Step::Next => self.lockstep.pc += 1,
                Step::Jump => {}
                Step::Switch | Step::Yield | Step::Fault => break,
            }
        }
        if self.warps.iter().all(|warp| warp.live == 0) { Turn::Finished } else { Turn::Running }
    }

    #[inline(always)]
    pub fn run_rows(&mut self, inst: &Inst) -> Step {
        // SAFETY: `exec` only hands out functions whose vector features this machine has.
        unsafe { (inst.exec.rows)(self, inst) }
    }

    /// Jumps with the whole block.
    pub fn jump_in_step(&mut self, pc: u32) -> Step {
        let lockstep = &mut self.lockstep;
        if pc <= lockstep.pc {
            lockstep.budget -= 1;
        }
        lockstep.pc = pc;
        if lockstep.budget == 0 { Step::Yield } else { Step::Jump }
    }

    /// Ends all threads.
    pub fn exit_in_step(&mut self) -> Step {
        for warp in &mut self.warps {
            warp.live = 0;
            warp.group.mask = 0;
        }
        self.lockstep.active = false;
        Step::Switch
    }

    /// Executes an instruction warp by warp. If the warps diverge, they continue where the handler left them.
    pub fn each_warp(&mut self, inst: &Inst) -> Step {
        self.each_warp_from(inst, 0)
    }

    /// Executes an instruction as `each_warp` does, but only for the warps from `first` on.
    #[inline(never)]
    pub fn each_warp_from(&mut self, inst: &Inst, first: usize) -> Step {
        self.expand_operands(inst);
        let pc = self.lockstep.pc;
        let mut parted = false;
        for index in 0..self.warps.len() {
            std::mem::swap(&mut self.warp, &mut self.warps[index]);
            self.warp.group.pc = pc;
            let mask = if index < first { 0 } else { self.pred_of(inst.guard, index as u32) };
            let step = match mask {
                0 => Step::Next,
                // SAFETY: as in `run_rows`.
                _ => unsafe { (inst.exec.warp)(self, inst, mask) },
            };
            match step {
                Step::Next => {
                    self.warp.group.pc = pc + 1;
                    parted |= !self.warp.is_whole();
                }
                Step::Jump => parted = true,
                Step::Switch => {
                    parted = true;
                    self.warp.choose();
                }
                Step::Yield => {
                    parted = true;
                    self.warp.rotate();
                }
                Step::Fault => {
                    std::mem::swap(&mut self.warp, &mut self.warps[index]);
                    return Step::Fault;
                }
            }
            std::mem::swap(&mut self.warp, &mut self.warps[index]);
        }
        if parted {
            self.fall_out();
            return Step::Switch;
        }
        Step::Next
    }

    /// Stores all operands of an instruction with lanes, whatever their form. If an operand is a predicate, the slot
    /// with the same number loses its affine form too, which is only slower.
    fn expand_operands(&mut self, inst: &Inst) {
        for operand in [inst.d, inst.d2, inst.a, inst.b, inst.c, inst.e] {
            self.expand(operand);
        }
        let lists = &self.launch.code.lists;
        inst.targets.of(lists).iter().chain(inst.sources.of(lists)).for_each(|&operand| self.expand(operand));
    }

    fn expand(&mut self, operand: u32) {
        let wide = self.block_warps;
        let at = |value: Affine, warp: u32| value.at(u64::from(warp % wide) * LANES as u64, u64::from(warp / wide));
        let (warps, slot) = (self.registers.warps(), self.lockstep.frame.slots.wrapping_add(operand & !NOT));
        let Some(held) = self.lockstep.held.get_mut((operand & !NOT) as usize) else { return };
        match std::mem::take(held) {
            Held::Lanes => {}
            Held::Word(value) => {
                for warp in 0..warps as u32 {
                    let first = at(value, warp) as u32;
                    let row = self.registers.row_mut::<u32>(slot, warp);
                    for (lane, place) in row.iter_mut().enumerate() {
                        *place = first.wrapping_add((value.step as u32).wrapping_mul(lane as u32));
                    }
                }
            }
            Held::Double(value) => {
                for warp in 0..warps as u32 {
                    let first = at(value, warp);
                    let row = self.registers.row_mut::<u64>(slot, warp);
                    for (lane, place) in row.iter_mut().enumerate() {
                        *place = first.wrapping_add(value.step.wrapping_mul(lane as u64));
                    }
                }
            }
        }
    }

    /// Returns a source operand, or `None` if it is not affine.
    #[inline(always)]
    pub fn affine<T: Lane>(&self, operand: u32) -> Option<Affine> {
        if operand & CONST != 0 {
            let value = T::view(&self.launch.consts[(operand & !CONST) as usize..])[0];
            return Some(Affine::uniform(value.to_bits()));
        }
        match self.lockstep.held[operand as usize] {
            Held::Lanes => None,
            Held::Word(value) | Held::Double(value) => Some(value),
        }
    }

    /// Returns the rows of a source operand. `index` is the operand's position in the instruction.
    #[inline(always)]
    pub fn rows<T: Lane>(&mut self, operand: u32, index: usize) -> Rows<T> {
        match self.affine::<T>(operand) {
            Some(value) if value.is_uniform() => return self.registers.broadcast(index, T::from_bits(value.base)),
            Some(_) => self.expand(operand),
            None => {}
        }
        self.registers.rows::<T>(self.lockstep.frame.slots + operand)
    }

    /// Returns the rows of a destination. The caller must write all of them.
    #[inline(always)]
    pub fn target_rows<T: Lane>(&mut self, operand: u32) -> Rows<T> {
        self.lockstep.held[operand as usize] = Held::Lanes;
        self.registers.rows::<T>(self.lockstep.frame.slots + operand)
    }

    #[inline(always)]
    pub fn set_affine<T: Lane>(&mut self, operand: u32, value: Affine) {
        let value = value.truncated::<T>();
        self.lockstep.held[operand as usize] = if T::SLOTS == 1 { Held::Word(value) } else { Held::Double(value) };
    }

    /// Returns a predicate operand of a warp.
    #[inline(always)]
    pub fn pred_of(&self, operand: u32, warp: u32) -> u32 {
        if operand == NONE {
            return ALL;
        }
        let value = self.registers.pred(self.lockstep.frame.preds + (operand & !NOT), warp);
        if operand & NOT != 0 { !value } else { value }
    }

    #[inline(always)]
    pub fn set_pred_of(&mut self, operand: u32, warp: u32, value: u32) {
        if operand != NONE {
            *self.registers.pred_mut(self.lockstep.frame.preds + operand, warp) = value;
        }
    }
}
