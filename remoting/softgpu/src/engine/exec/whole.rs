//! Strong accesses to vectors of 32-bit elements: two elements at a time, as GPUs do it. The ISA promises less, but programs
//! that hand data to each other beside a flag rely on it (NCCL's LL protocol).

use std::sync::atomic::{Ordering, fence};

use super::lanes::{LANES, set_lanes};
use super::memory::space;
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

/// Elements that are read or written at once.
const PAIR: usize = 2;
const PAIR_BYTES: usize = 8;

/// `ld` of two or four 32-bit elements into the list.
pub struct LoadWhole;

impl Handler for LoadWhole {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let targets = inst.targets.of(&block.launch.code.lists);
        let addresses = match block.locate(inst, (targets.len() * 4) as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        for (index, pair) in targets.chunks_exact(PAIR).enumerate() {
            let values: [u64; LANES] = addresses.map(|host| host.plus(index * PAIR_BYTES).read());
            block.set(pair[0], &values.map(|value| value as u32), mask);
            block.set(pair[1], &values.map(|value| (value >> 32) as u32), mask);
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }
}

/// `st` of two or four 32-bit elements from the list.
pub struct StoreWhole;

impl Handler for StoreWhole {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let sources = inst.sources.of(&block.launch.code.lists);
        let addresses = match block.locate(inst, (sources.len() * 4) as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        for lane in set_lanes(mask) {
            for (index, pair) in sources.chunks_exact(PAIR).enumerate() {
                let [low, high] = [pair[0], pair[1]].map(|source| u64::from(block.src::<u32>(source)[lane]));
                addresses[lane].plus(index * PAIR_BYTES).write(low | high << 32);
            }
        }
        Step::Next
    }
}
