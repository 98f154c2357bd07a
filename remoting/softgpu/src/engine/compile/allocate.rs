//! Register allocation: liveness analysis by data flow, then linear scan.
//!
//! Compilers use one virtual register for each value, which are thousands in a large kernel. A register has 128 bytes,
//! so a warp's registers would not fit in the cache. Lanes are independent. All writes are masked, so a slot may hold
//! different values in different lanes, and liveness for each thread is correct even if lanes diverge.

use super::flow::BasicBlock;
use crate::engine::code::{CONST, Inst, NONE, NOT};

/// The kind of storage that a register needs: one slot, two slots, or a predicate. `Wide` registers are split before
/// allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Word,
    Double,
    Wide,
    Pred,
}

/// The numbers of slots and predicates that a frame needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Frame {
    pub slots: u32,
    pub preds: u32,
}

fn register(operand: u32) -> Option<usize> {
    (operand != NONE && operand & CONST == 0).then_some((operand & !NOT) as usize)
}

fn uses(inst: &Inst, lists: &[u32], mut visit: impl FnMut(usize)) {
    [inst.a, inst.b, inst.c, inst.e, inst.guard].into_iter().filter_map(register).for_each(&mut visit);
    inst.sources.of(lists).iter().copied().filter_map(register).for_each(&mut visit);
}

fn defs(inst: &Inst, lists: &[u32], mut visit: impl FnMut(usize)) {
    [inst.d, inst.d2].into_iter().filter_map(register).for_each(&mut visit);
    inst.targets.of(lists).iter().copied().filter_map(register).for_each(&mut visit);
}

/// A set of registers for each block. A row of bits is one set.
struct Rows {
    bits: Vec<u64>,
    width: usize,
}

impl Rows {
    fn new(rows: usize, registers: usize) -> Rows {
        let width = registers.div_ceil(64);
        Rows { bits: vec![0; rows * width], width }
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.width..(row + 1) * self.width]
    }

    fn insert(&mut self, row: usize, register: usize) {
        self.bits[row * self.width + register / 64] |= 1 << (register % 64);
    }

    fn contains(&self, row: usize, register: usize) -> bool {
        self.bits[row * self.width + register / 64] >> (register % 64) & 1 == 1
    }
}

fn members(row: &[u64], mut visit: impl FnMut(usize)) {
    for (index, &word) in row.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            visit(index * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}

/// Returns the registers that are live at the start and at the end of each block.
fn liveness(insts: &[Inst], lists: &[u32], blocks: &[BasicBlock], order: &[usize], registers: usize) -> (Rows, Rows) {
    let mut read = Rows::new(blocks.len(), registers);
    let mut written = Rows::new(blocks.len(), registers);
    for &block in order {
        for inst in &insts[blocks[block].start..blocks[block].end] {
            uses(inst, lists, |register| {
                if !written.contains(block, register) {
                    read.insert(block, register);
                }
            });
            // A guarded write keeps the old value in some lanes.
            if inst.guard == NONE {
                defs(inst, lists, |register| written.insert(block, register));
            } else {
                defs(inst, lists, |register| {
                    if !written.contains(block, register) {
                        read.insert(block, register);
                    }
                });
            }
        }
    }
    let mut live_in = read;
    let mut live_out = Rows::new(blocks.len(), registers);
    let width = live_in.width;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev() {
            for successor in blocks[block].successors() {
                for word in 0..width {
                    live_out.bits[block * width + word] |= live_in.bits[successor * width + word];
                }
            }
            for word in 0..width {
                let at = block * width + word;
                let new = live_in.bits[at] | live_out.bits[at] & !written.bits[at];
                changed |= new != live_in.bits[at];
                live_in.bits[at] = new;
            }
        }
    }
    (live_in, live_out)
}

#[derive(Clone, Copy)]
struct Interval {
    register: usize,
    start: usize,
    end: usize,
}

/// Returns the live intervals over the layout order. An instruction at position p reads at 2p and writes at 2p + 1.
fn intervals(insts: &[Inst], lists: &[u32], blocks: &[BasicBlock], order: &[usize], registers: usize) -> Vec<Interval> {
    let (live_in, live_out) = liveness(insts, lists, blocks, order, registers);
    let mut spans = vec![(usize::MAX, 0); registers];
    let mut touch = |register: usize, at: usize| {
        let span: &mut (usize, usize) = &mut spans[register];
        *span = (span.0.min(at), span.1.max(at));
    };
    let mut position = 0;
    for &block in order {
        members(live_in.row(block), |register| touch(register, 2 * position));
        for inst in &insts[blocks[block].start..blocks[block].end] {
            uses(inst, lists, |register| touch(register, 2 * position));
            defs(inst, lists, |register| touch(register, 2 * position + 1));
            position += 1;
        }
        members(live_out.row(block), |register| touch(register, 2 * position));
    }
    let used = spans.iter().enumerate().filter(|(_, span)| span.0 != usize::MAX);
    let mut intervals: Vec<Interval> =
        used.map(|(register, &(start, end))| Interval { register, start, end }).collect();
    intervals.sort_unstable_by_key(|interval| interval.start);
    intervals
}

/// Gives each interval of one class a unit, and returns the number of units.
fn scan(intervals: impl Iterator<Item = Interval>, units: &mut [u32]) -> u32 {
    let mut free: Vec<u32> = Vec::new();
    let mut active: std::collections::BinaryHeap<std::cmp::Reverse<(usize, u32)>> = Default::default();
    let mut count = 0;
    for interval in intervals {
        while let Some(&std::cmp::Reverse((end, unit))) = active.peek() {
            if end >= interval.start {
                break;
            }
            active.pop();
            free.push(unit);
        }
        let unit = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        units[interval.register] = unit;
        active.push(std::cmp::Reverse((interval.end, unit)));
    }
    count
}

/// Replaces virtual registers by slots. In the frame, 64-bit registers come first and then 32-bit registers. Predicates
/// are numbered separately.
pub fn allocate(
    insts: &mut [Inst],
    lists: &mut [u32],
    blocks: &[BasicBlock],
    order: &[usize],
    classes: &[Class],
) -> Frame {
    let intervals = intervals(insts, lists, blocks, order, classes.len());
    let mut units = vec![0; classes.len()];
    let mut of = |class: Class| scan(intervals.iter().copied().filter(|i| classes[i.register] == class), &mut units);
    let (doubles, words, preds) = (of(Class::Double), of(Class::Word), of(Class::Pred));
    let place = |operand: u32| match register(operand) {
        None => operand,
        Some(register) => match classes[register] {
            Class::Double => units[register] * 2,
            Class::Wide => unreachable!("no instruction names a 128-bit register"),
            Class::Word => doubles * 2 + units[register],
            Class::Pred => units[register] | operand & NOT,
        },
    };
    for inst in insts.iter_mut() {
        for operand in [&mut inst.d, &mut inst.d2, &mut inst.a, &mut inst.b, &mut inst.c, &mut inst.e, &mut inst.guard]
        {
            *operand = place(*operand);
        }
    }
    for operand in lists {
        *operand = place(*operand);
    }
    Frame { slots: doubles * 2 + words, preds }
}
