//! A block of threads with its warps, shared memory and barriers. One OS thread runs it, a turn at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::arrivals::{BARRIERS, Barrier};
use super::in_step::Lockstep;
use super::lanes::{ALL, LANES, Lane, Slot, blend};
use super::registers::Registers;
use super::warp::{Wait, Warp};
use crate::engine::code::{CONST, Code, Inst, NONE, NOT, Step};
use crate::engine::heap::Heap;
use crate::engine::watch::Watch;
use crate::engine::{Fault, MemoryMap, Output, Textures};

/// The data that all blocks of a launch share.
pub struct Launch<'a> {
    pub code: &'a Code,
    pub consts: &'a [Slot],
    pub function: u32,
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub static_shared: u32,
    pub dynamic_shared: u32,
    /// The offset of dynamic shared memory. All dynamic variables have this address.
    pub dynamic_start: u32,
    pub params: &'a [u8],
    pub memory: &'a MemoryMap,
    pub textures: &'a Textures,
    pub heap: &'a Heap,
    pub out: &'a dyn Output,
    pub cancel: &'a AtomicBool,
    pub start: Instant,
    pub id: u64,
    /// The address of the counter for blocks of a cooperative launch, or 0 if there is none.
    pub workspace: u64,
    /// The number of backward branches in a turn.
    pub turn: u32,
    /// The observer of accesses to global memory, if there is one.
    pub watch: Option<&'a dyn Watch>,
}

/// The state of a block after a turn.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Running,
    Finished,
}

pub struct Block<'a> {
    pub launch: &'a Launch<'a>,
    /// The running warp. Its entry in `warps` is empty while it runs.
    pub warp: Warp,
    pub warps: Vec<Warp>,
    pub registers: Registers,
    pub lockstep: Lockstep,
    /// The block's index in the grid. In a team, this is the index of the first block.
    pub ctaid: [u32; 3],
    /// The number of consecutive blocks along x that run as one team. `block_warps` is the number of warps in each
    /// block.
    pub team: u32,
    pub block_warps: u32,
    /// The shared memory, in units of 16 bytes so that vector accesses are aligned.
    pub shared: Vec<u128>,
    pub barriers: [Barrier; BARRIERS],
    /// The device ranges that were used last, most recent first. They are valid while the memory map's generation
    /// equals `generation`.
    pub ranges: [(u64, u64); 4],
    pub generation: u64,
    /// Whether a barrier was completed, so that all warps may be at the same place again.
    pub released: bool,
    pub fault: Option<Fault>,
}

impl<'a> Block<'a> {
    pub fn new(launch: &'a Launch<'a>) -> Self {
        Block {
            launch,
            warp: Warp::default(),
            warps: Vec::new(),
            registers: Registers::default(),
            lockstep: Lockstep::default(),
            ctaid: [0; 3],
            team: 1,
            block_warps: 1,
            shared: Vec::new(),
            barriers: Default::default(),
            ranges: Default::default(),
            generation: 0,
            released: false,
            fault: None,
        }
    }

    /// Starts a team of blocks from the given linear id on, in the memory of the previous team. A thread's memory is
    /// undefined until the thread writes it, so nothing is cleared.
    pub fn start(&mut self, linear: u64, team: u32) {
        let launch = self.launch;
        let [x, y, _] = launch.grid.map(u64::from);
        self.ctaid = [linear % x, linear / x % y, linear / x / y].map(|i| i as u32);
        let threads = launch.block.iter().product::<u32>();
        let function = &launch.code.functions[launch.function as usize];
        (self.team, self.block_warps) = (team, threads.div_ceil(LANES as u32));
        self.warps.resize_with((team * self.block_warps) as usize, Warp::default);
        for (id, warp) in self.warps.iter_mut().enumerate() {
            let left = threads - id as u32 % self.block_warps * LANES as u32;
            let live = if left >= LANES as u32 { ALL } else { (1 << left) - 1 };
            warp.reset(id as u32, live, function.entry_pc, launch.function);
            warp.local.reserve(function.local_bytes);
        }
        self.registers.start(self.warps.len(), function.slots, function.preds);
        self.lockstep.active = false;
        self.shared.resize(self.shared_bytes().div_ceil(16) as usize, 0);
        self.barriers.iter_mut().for_each(Barrier::reset);
        self.fault = None;
    }

    /// Returns the bytes of shared memory: the static part, any gap for alignment, and the dynamic part.
    pub fn shared_bytes(&self) -> u32 {
        match self.launch.dynamic_shared {
            0 => self.launch.static_shared,
            dynamic => self.launch.dynamic_start + dynamic,
        }
    }

    /// Runs each warp for one turn.
    pub fn turn(&mut self) -> Result<Turn, Fault> {
        if self.launch.cancel.load(Ordering::Relaxed) {
            return Err(Fault { code: 702, message: format!("kernel '{}' was cancelled", self.launch.kernel) });
        }
        if self.lockstep.active || self.fall_in() {
            let turn = self.run_in_step();
            return self.fault.take().map_or(Ok(turn), Err);
        }
        let (mut ran, mut alive) = (false, false);
        for index in 0..self.warps.len() {
            if self.warps[index].live == 0 {
                continue;
            }
            alive = true;
            std::mem::swap(&mut self.warp, &mut self.warps[index]);
            if self.warp.group.mask != 0 || self.warp.choose() {
                ran = true;
                self.run();
            }
            std::mem::swap(&mut self.warp, &mut self.warps[index]);
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            if std::mem::take(&mut self.released) && self.fall_in() {
                return Ok(Turn::Running);
            }
        }
        match (alive, ran) {
            (false, _) => Ok(Turn::Finished),
            (true, true) => Ok(Turn::Running),
            (true, false) => Err(self.deadlock()),
        }
    }

    /// Runs the current warp until its turn is over or none of its groups can continue.
    fn run(&mut self) {
        let code = self.launch.code;
        self.warp.begin_turn(self.launch.turn);
        loop {
            if self.warp.group.pc >= self.warp.stop {
                self.warp.choose();
            }
            let inst = &code.insts[self.warp.group.pc as usize];
            let mut mask = self.warp.group.mask;
            if inst.guard != NONE {
                mask &= self.pred(inst.guard);
                if mask == 0 {
                    self.warp.group.pc += 1;
                    continue;
                }
            }
            // SAFETY: `exec` only hands out functions whose vector features this machine has.
            match unsafe { (inst.exec.warp)(self, inst, mask) } {
                Step::Next => self.warp.group.pc += 1,
                Step::Jump => {}
                Step::Switch => {
                    if !self.warp.choose() || self.released {
                        return;
                    }
                }
                Step::Yield => {
                    self.warp.rotate();
                    return;
                }
                Step::Fault => return,
            }
        }
    }

    /// Returns the lanes of a source operand.
    #[inline(always)]
    pub fn src<T: Lane>(&self, operand: u32) -> &[T; LANES] {
        if operand & CONST != 0 {
            T::view(&self.launch.consts[(operand & !CONST) as usize..])
        } else {
            self.registers.row(self.warp.group.frame.slots + operand, self.warp.id)
        }
    }

    /// Writes a destination operand in the lanes of the mask.
    #[inline(always)]
    pub fn set<T: Lane>(&mut self, operand: u32, value: &[T; LANES], mask: u32) {
        let slot = self.warp.group.frame.slots + operand;
        blend(self.registers.row_mut(slot, self.warp.id), value, mask);
    }

    /// Returns the lanes in which a predicate operand is true. An absent operand is true in all lanes.
    #[inline(always)]
    pub fn pred(&self, operand: u32) -> u32 {
        if operand == NONE {
            return ALL;
        }
        let value = self.registers.pred(self.warp.group.frame.preds + (operand & !NOT), self.warp.id);
        if operand & NOT != 0 { !value } else { value }
    }

    #[inline(always)]
    pub fn set_pred(&mut self, operand: u32, value: u32, mask: u32) {
        if operand != NONE {
            let pred = self.registers.pred_mut(self.warp.group.frame.preds + operand, self.warp.id);
            *pred = *pred & !mask | value & mask;
        }
    }

    /// Records a fault of the current instruction.
    #[cold]
    pub fn fail(&mut self, code: u32, lane: usize, what: String) -> Step {
        let line = self.launch.code.lines[self.warp.group.pc as usize];
        let [tx, ty, tz] = self.thread(lane);
        let [bx, by, bz] = self.running_block();
        let kernel = self.launch.kernel;
        let message =
            format!("{what} in kernel '{kernel}', PTX line {line}, block ({bx},{by},{bz}), thread ({tx},{ty},{tz})");
        self.fault = Some(Fault { code, message });
        Step::Fault
    }

    /// Returns the thread index of a lane of the current warp.
    pub fn thread(&self, lane: usize) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        let linear = self.warp.id % self.block_warps * LANES as u32 + lane as u32;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Returns the index in the grid of the current warp's block.
    pub fn running_block(&self) -> [u32; 3] {
        let [x, y, z] = self.ctaid;
        [x + self.warp.id / self.block_warps, y, z]
    }

    fn deadlock(&self) -> Fault {
        let mut message = format!("kernel '{}' is deadlocked: block {:?}", self.launch.kernel, self.ctaid);
        for warp in self.warps.iter().filter(|warp| warp.live != 0).take(4) {
            for group in warp.others.iter().take(4) {
                let line = self.launch.code.lines[group.pc as usize];
                let what = match group.wait {
                    Wait::Nothing => "runnable".to_owned(),
                    Wait::Barrier(number) => format!("waiting at barrier {number}"),
                    Wait::Lanes => "waiting for other lanes of its warp".to_owned(),
                };
                message += &format!("; warp {} lanes {:08x} {what}, PTX line {line}", warp.id, group.mask);
            }
        }
        Fault { code: 719, message }
    }

    /// Returns the instruction at which a group waits.
    pub fn inst_at(&self, pc: u32) -> &'a Inst {
        &self.launch.code.insts[pc as usize]
    }
}
