//! Loads, stores and asynchronous copies (ISA 9.7.9).

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

pub use super::address::{Bad, space};
use super::host::{Host, Integer};
use super::lanes::{ALL, LANES, Lane, set_lanes};
use super::{Block, Handler};
use crate::engine::code::{Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Step};

/// Whether lane i's address is lane 0's plus i times `bytes`.
#[inline(always)]
fn in_a_row(addresses: &[Host; LANES], bytes: usize) -> bool {
    let mut differ = 0;
    for lane in 0..LANES {
        differ |= addresses[lane].address() ^ addresses[0].address().wrapping_add((lane * bytes) as u64);
    }
    differ == 0
}

#[inline(always)]
fn all_same(addresses: &[Host; LANES]) -> bool {
    addresses.iter().fold(0, |differ, host| differ | host.address() ^ addresses[0].address()) == 0
}

/// An element in memory and the register it is widened to.
pub trait Element {
    type Memory: Integer;
    type Register: Lane;
    /// From as many bytes as the element has.
    fn from_bytes(bytes: &[u8]) -> Self::Memory;
    fn widen(value: Self::Memory) -> Self::Register;
    fn narrow(value: Self::Register) -> Self::Memory;
}

macro_rules! elements {
    ($($name:ident: $memory:ty => $register:ty),*) => {$(
        pub struct $name;
        impl Element for $name {
            type Memory = $memory;
            type Register = $register;
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> $memory {
                bytes.try_into().map_or(0, <$memory>::from_le_bytes)
            }
            #[inline(always)]
            fn widen(value: $memory) -> $register {
                value as $register
            }
            #[inline(always)]
            fn narrow(value: $register) -> $memory {
                value as $memory
            }
        }
    )*};
}

elements! {
    U8: u8 => u32, S8: i8 => u32, U16: u16 => u32, S16: i16 => u32, B32: u32 => u32, B64: u64 => u64,
    U8Wide: u8 => u64, S8Wide: i8 => u64, U16Wide: u16 => u64, S16Wide: i16 => u64, U32Wide: u32 => u64,
    S32Wide: i32 => u64
}

/// `ld`: one element into `d`, or several into the list.
pub struct Load<E>(PhantomData<E>);

impl<E: Element> Handler for Load<E> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let size = size_of::<E::Memory>();
        let code = block.launch.code;
        let single = [inst.d];
        let targets = if inst.targets.len == 0 { &single[..] } else { inst.targets.of(&code.lists) };
        let bytes = (size * targets.len()) as u64;
        let addresses = match block.locate(inst, bytes, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        if all_same(&addresses) {
            for (index, &target) in targets.iter().enumerate() {
                let value = E::widen(addresses[0].plus(index * size).read());
                block.set(target, &[value; LANES], mask);
            }
        } else if targets.len() == 1 && mask == ALL && in_a_row(&addresses, size) {
            let row = addresses[0].read_row::<E::Memory>();
            let mut d = [E::Register::default(); LANES];
            for lane in 0..LANES {
                d[lane] = E::widen(row[lane]);
            }
            block.set(targets[0], &d, mask);
        } else {
            for (index, &target) in targets.iter().enumerate() {
                let mut d = [E::Register::default(); LANES];
                // Lanes outside the mask repeat the first one's read, which saves a branch per lane.
                for lane in 0..LANES {
                    d[lane] = E::widen(addresses[lane].plus(index * size).read());
                }
                block.set(target, &d, mask);
            }
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }
}

/// `ld.param` of a kernel parameter at the offset `imm`: the same for all lanes.
pub struct LoadParam<E>(PhantomData<E>);

impl<E: Element> Handler for LoadParam<E> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let size = size_of::<E::Memory>();
        let code = block.launch.code;
        let single = [inst.d];
        let targets = if inst.targets.len == 0 { &single[..] } else { inst.targets.of(&code.lists) };
        for (index, &target) in targets.iter().enumerate() {
            let params = block.launch.params;
            let offset = inst.imm as usize + index * size;
            let Some(bytes) = params.get(offset..offset + size) else {
                return block.access_fault(Bad::Outside, size as u64, offset as u64, 0);
            };
            let value = E::widen(E::from_bytes(bytes));
            block.set(target, &[value; LANES], mask);
        }
        Step::Next
    }
}

/// `st`: one element from `b`, or several from the list.
pub struct Store<E>(PhantomData<E>);

impl<E: Element> Handler for Store<E> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let size = size_of::<E::Memory>();
        let code = block.launch.code;
        let single = [inst.b];
        let sources = if inst.sources.len == 0 { &single[..] } else { inst.sources.of(&code.lists) };
        let bytes = (size * sources.len()) as u64;
        let addresses = match block.locate(inst, bytes, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        if sources.len() == 1 && mask == ALL && in_a_row(&addresses, size) {
            let values = block.src::<E::Register>(sources[0]);
            let mut row = [E::Memory::default(); LANES];
            for lane in 0..LANES {
                row[lane] = E::narrow(values[lane]);
            }
            addresses[0].write_row(&row);
        } else {
            for lane in set_lanes(mask) {
                for (index, &source) in sources.iter().enumerate() {
                    let value = E::narrow(block.src::<E::Register>(source)[lane]);
                    addresses[lane].plus(index * size).write(value);
                }
            }
        }
        Step::Next
    }
}

/// `membar` and `fence`.
pub struct Fence;

impl Handler for Fence {
    #[inline(always)]
    fn run(_block: &mut Block, _inst: &Inst, _mask: u32) -> Step {
        fence(Ordering::SeqCst);
        Step::Next
    }
}

/// `cp.async`: copies at once. Destination `a` + `imm` in shared memory, source `b`, bytes in `mods` above bit 8, of which
/// operand `c` (if any) says how many to read; the rest are zero.
pub struct CopyAsync;

impl Handler for CopyAsync {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let bytes = inst.mods >> 8;
        let targets = match block.locate(inst, bytes.into(), mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        let sources = *block.src::<u64>(inst.b);
        for lane in set_lanes(mask) {
            let used = if inst.c == NONE { bytes } else { block.src::<u32>(inst.c)[lane].min(bytes) };
            let mut buffer = [0u8; 16];
            if let Err(bad) = block.fetch(sources[lane], &mut buffer[..bytes as usize], used as usize, lane) {
                return block.access_fault(bad, bytes.into(), sources[lane], lane);
            }
            for (index, word) in buffer[..bytes as usize].chunks_exact(4).enumerate() {
                targets[lane].plus(4 * index).write(B32::from_bytes(word));
            }
        }
        Step::Next
    }
}

impl Block<'_> {
    /// Reads the first `used` bytes of an aligned piece of global memory; the rest need not exist.
    fn fetch(&mut self, address: u64, piece: &mut [u8], used: usize, lane: usize) -> Result<(), Bad> {
        let bytes = piece.len() as u64;
        if used == piece.len() {
            let host = self.locate_one(space::GLOBAL, address, bytes, lane)?;
            for (index, word) in piece.chunks_exact_mut(4).enumerate() {
                word.copy_from_slice(&host.plus(4 * index).read::<u32>().to_le_bytes());
            }
            return Ok(());
        }
        if used > 0 && address & (bytes - 1) != 0 {
            return Err(Bad::Misaligned);
        }
        for (offset, byte) in piece[..used].iter_mut().enumerate() {
            *byte = self.locate_one(space::GLOBAL, address + offset as u64, 1, lane)?.read();
        }
        Ok(())
    }
}

/// `isspacep`: whether generic address `a` is in the space of `mods`.
pub struct IsSpace;

impl Handler for IsSpace {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let addresses = block.src::<u64>(inst.a);
        let range = match inst.mods {
            space::SHARED => SHARED_WINDOW..LOCAL_WINDOW,
            space::LOCAL => LOCAL_WINDOW..PARAM_WINDOW,
            space::PARAM => PARAM_WINDOW..2 * PARAM_WINDOW,
            _ => 0..SHARED_WINDOW,
        };
        let inside = set_lanes(ALL).filter(|&lane| range.contains(&addresses[lane])).fold(0, |all, l| all | 1 << l);
        block.set_pred(inst.d, inside, mask);
        Step::Next
    }
}
