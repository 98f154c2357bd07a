//! Strong accesses to vectors. Up to 16 bytes are accessed at once, as GPUs do. The ISA guarantees less, but programs
//! that store data and a flag together rely on it (CUB's tiles, NCCL's LL protocol).

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use super::lanes::{Lane, set_lanes};
use super::memory::{Element, read_of, space, write_of};
use super::watched::Touch;
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

/// The number of bytes that are accessed at once.
const PIECE: usize = 16;

/// The handler of `ld` of several elements into the list of targets.
pub struct LoadWhole<E>(PhantomData<E>);

impl<E: Element> Handler for LoadWhole<E> {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let bytes = inst.targets.len as usize * size_of::<E::Memory>();
        block.touch_lanes(inst, bytes, mask, read_of(inst), touches);
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let size = size_of::<E::Memory>();
        let targets = inst.targets.of(&block.launch.code.lists);
        let addresses = match block.locate(inst, (size * targets.len()) as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        for (index, targets) in targets.chunks(PIECE / size).enumerate() {
            let pieces = addresses.map(|host| host.plus(index * PIECE).read_piece(size * targets.len()).to_le_bytes());
            for (element, &target) in targets.iter().enumerate() {
                let values = pieces.map(|piece| E::widen(E::from_bytes(&piece[element * size..][..size])));
                block.set(target, &values, mask);
            }
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }
}

/// The handler of `st` of several elements from the list of sources.
pub struct StoreWhole<E>(PhantomData<E>);

impl<E: Element> Handler for StoreWhole<E> {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let bytes = inst.sources.len as usize * size_of::<E::Memory>();
        block.touch_lanes(inst, bytes, mask, write_of(inst), touches);
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let size = size_of::<E::Memory>();
        let sources = inst.sources.of(&block.launch.code.lists);
        let addresses = match block.locate(inst, (size * sources.len()) as u64, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        let of_element = u64::MAX >> (64 - 8 * size);
        for lane in set_lanes(mask) {
            for (index, sources) in sources.chunks(PIECE / size).enumerate() {
                let mut piece = 0;
                for (element, &source) in sources.iter().enumerate() {
                    let value = block.src::<E::Register>(source)[lane].to_bits() & of_element;
                    piece |= u128::from(value) << (8 * size * element);
                }
                addresses[lane].plus(index * PIECE).write_piece(size * sources.len(), piece);
            }
        }
        Step::Next
    }
}
