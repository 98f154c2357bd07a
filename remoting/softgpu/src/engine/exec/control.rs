//! The handlers of branches, calls and exits (ISA 9.7.12).

use super::lanes::set_lanes;
use super::warp::{Group, Return};
use super::{Block, Handler};
use crate::engine::code::{Callee, Inst, Step, function_at};

/// The maximum number of register slots in a warp's frames (8 MiB). A deeper recursion is treated as endless.
const MAX_SLOTS: u32 = 1 << 16;

impl Block<'_> {
    /// Moves the lanes of `mask` to `pc`. The other lanes of the group continue after the current instruction.
    #[inline(always)]
    fn jump(&mut self, pc: u32, mask: u32) -> Step {
        let warp = &mut self.warp;
        let from = warp.group.pc;
        if mask == warp.group.mask {
            warp.group.pc = pc;
        } else {
            let mut other = Group { mask: warp.group.mask & !mask, pc: from + 1, ..warp.group.clone() };
            warp.group.mask = mask;
            warp.group.pc = pc;
            if other.pc < pc {
                std::mem::swap(&mut other, &mut warp.group);
            }
            warp.set_aside(other);
            warp.set_stop();
        }
        if pc <= from && warp.spend() { Step::Yield } else { Step::Jump }
    }

    /// Keeps only the lanes of `mask` in the running group. The other lanes continue at `pc`.
    fn keep(&mut self, mask: u32, pc: u32) {
        let warp = &mut self.warp;
        if warp.group.mask != mask {
            let rest = Group { mask: warp.group.mask & !mask, pc, ..warp.group.clone() };
            warp.set_aside(rest);
            warp.group.mask = mask;
        }
    }

    /// Copies bytes between two places in each lane's local memory.
    fn copy_local(&mut self, from: u32, to: u32, size: u32, mask: u32) {
        let stride = self.warp.local.stride();
        if from + size <= stride && to + size <= stride {
            let (from, to, size) = (from as usize, to as usize, size as usize);
            set_lanes(mask).for_each(|lane| self.warp.local.lane(lane).copy_within(from..from + size, to));
        }
    }

    fn call(&mut self, inst: &Inst, callee: u32, mask: u32) -> Step {
        let code = self.launch.code;
        let pc = self.warp.group.pc;
        self.keep(mask, pc + 1);
        let site = &code.calls[inst.imm as usize];
        let frame = self.warp.group.frame;
        let caller = &code.functions[frame.function as usize];
        let function = &code.functions[callee as usize];
        let mut next = frame;
        next.function = callee;
        next.slots += caller.slots;
        next.preds += caller.preds;
        next.local += caller.local_bytes;
        let lane = mask.trailing_zeros() as usize;
        let (slots, preds) = (next.slots + function.slots, next.preds + function.preds);
        if slots > MAX_SLOTS || !self.warp.local.reserve(next.local + function.local_bytes) {
            return self.fail(719, lane, "stack overflow".to_owned());
        }
        if self.warp.group.stack.len() > MAX_SLOTS as usize {
            return self.fail(719, lane, "endless recursion".to_owned());
        }
        self.registers.reserve(slots, preds);
        for (&(from, size), &(to, room)) in site.args.iter().zip(&function.params) {
            self.copy_local(frame.local + from, next.local + to, size.min(room), mask);
        }
        let group = &mut self.warp.group;
        group.stack.push(Return { pc: pc + 1, frame, call: inst.imm as u32 });
        group.frame = next;
        group.pc = function.entry_pc;
        self.warp.set_stop();
        // A call also counts as a backward branch, because a recursion can run as long as a loop.
        if self.warp.spend() { Step::Yield } else { Step::Jump }
    }

    /// Ends the lanes of `mask`.
    fn exit(&mut self, mask: u32) -> Step {
        self.warp.live &= !mask;
        self.warp.group.mask &= !mask;
        self.lanes_left();
        self.threads_left();
        if self.warp.group.mask == 0 { Step::Switch } else { Step::Next }
    }
}

/// The handler of `bra`. The target pc is in `imm`.
pub struct Branch;

impl Handler for Branch {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        block.jump(inst.imm as u32, mask)
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        block.jump_in_step(inst.imm as u32)
    }
}

/// The handler of `brx.idx`. `imm` is the index of the first target in the table, and `mods` is the number of targets.
pub struct BranchIndexed;

impl Handler for BranchIndexed {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let lane = mask.trailing_zeros() as usize;
        let indices = *block.src::<u32>(inst.a);
        let index = indices[lane];
        if index >= inst.mods {
            return block.fail(719, lane, format!("branch index {index} of {}", inst.mods));
        }
        let same = set_lanes(mask).filter(|&l| indices[l] == index).fold(0, |all, l| all | 1 << l);
        // Lanes with another index execute this instruction again. Lanes whose guard is false continue.
        let group = &block.warp.group;
        let (pc, whole) = (group.pc, group.mask);
        if whole & !mask != 0 {
            let rest = Group { mask: whole & !mask, pc: pc + 1, ..group.clone() };
            block.warp.group.mask = mask;
            block.warp.set_aside(rest);
        }
        block.keep(same, pc);
        block.warp.group.pc = block.launch.code.tables[inst.imm as usize + index as usize];
        block.warp.set_stop();
        if block.warp.group.pc <= pc && block.warp.spend() { Step::Yield } else { Step::Jump }
    }
}

/// The handler of `call`. `imm` is the index of the call site.
pub struct Call;

impl Handler for Call {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        match block.launch.code.calls[inst.imm as usize].callee {
            Callee::Function(index) => block.call(inst, index, mask),
            Callee::Indirect => {
                let addresses = *block.src::<u64>(inst.a);
                let lane = mask.trailing_zeros() as usize;
                let functions = block.launch.code.functions.len() as u32;
                let Some(index) = function_at(addresses[lane]).filter(|&index| index < functions) else {
                    return block.fail(718, lane, format!("call of address 0x{:x}", addresses[lane]));
                };
                let same = set_lanes(mask).filter(|&l| addresses[l] == addresses[lane]).fold(0, |all, l| all | 1 << l);
                let (pc, whole) = (block.warp.group.pc, block.warp.group.mask);
                if same != mask {
                    // Lanes with another callee execute this instruction again, as their own group.
                    let rest = Group { mask: mask & !same, pc, ..block.warp.group.clone() };
                    block.warp.group.mask = whole & !rest.mask;
                    block.warp.set_aside(rest);
                }
                block.call(inst, index, same)
            }
        }
    }
}

/// The handler of `ret`, which returns to the caller or ends the thread.
pub struct Ret;

impl Handler for Ret {
    #[inline(always)]
    fn run(block: &mut Block, _inst: &Inst, mask: u32) -> Step {
        let pc = block.warp.group.pc;
        if block.warp.group.stack.is_empty() {
            return block.exit(mask);
        }
        block.keep(mask, pc + 1);
        let callee = block.warp.group.frame;
        let Some(back) = block.warp.group.stack.pop() else { return Step::Switch };
        let code = block.launch.code;
        let function = &code.functions[callee.function as usize];
        for (&(from, size), &(to, room)) in function.returns.iter().zip(&code.calls[back.call as usize].returns) {
            block.copy_local(callee.local + from, back.frame.local + to, size.min(room), mask);
        }
        block.warp.group.frame = back.frame;
        block.warp.group.pc = back.pc;
        // Groups that are still inside the call are deeper, so they run first.
        block.warp.choose();
        Step::Jump
    }

    fn run_block(block: &mut Block, _inst: &Inst) -> Step {
        block.exit_in_step()
    }
}

/// The handler of `exit`.
pub struct Exit;

impl Handler for Exit {
    #[inline(always)]
    fn run(block: &mut Block, _inst: &Inst, mask: u32) -> Step {
        block.exit(mask)
    }

    fn run_block(block: &mut Block, _inst: &Inst) -> Step {
        block.exit_in_step()
    }
}

/// The handler of `trap`.
pub struct Trap;

impl Handler for Trap {
    #[inline(always)]
    fn run(block: &mut Block, _inst: &Inst, mask: u32) -> Step {
        block.fail(719, mask.trailing_zeros() as usize, "trap".to_owned())
    }
}

/// The handler of an access to multicast memory, which faults.
pub struct NoMulticast;

impl Handler for NoMulticast {
    #[inline(always)]
    fn run(block: &mut Block, _inst: &Inst, mask: u32) -> Step {
        block.fail(715, mask.trailing_zeros() as usize, "multimem: there is no multicast memory".to_owned())
    }
}

/// The handler of `nanosleep`, which lets other warps and other OS threads run.
pub struct Sleep;

impl Handler for Sleep {
    #[inline(always)]
    fn run(block: &mut Block, _inst: &Inst, _mask: u32) -> Step {
        std::thread::yield_now();
        block.warp.group.pc += 1;
        Step::Yield
    }
}

/// The handler of instructions that have no effect here.
pub struct Nop;

impl Handler for Nop {
    #[inline(always)]
    fn run(_block: &mut Block, _inst: &Inst, _mask: u32) -> Step {
        Step::Next
    }

    fn run_block(_block: &mut Block, _inst: &Inst) -> Step {
        Step::Next
    }
}
