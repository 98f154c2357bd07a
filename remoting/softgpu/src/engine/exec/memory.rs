//! The handlers of loads, stores and asynchronous copies (ISA 9.7.9).

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

pub use super::address::{Bad, space};
use super::affine::Affine;
use super::gather::{elements, gather, load_halves, narrow_row, scatter, widen_row};
use super::host::Integer;
use super::lanes::{ALL, LANES, Lane, set_lanes};
use super::watched::{Touch, touch_each};
use super::{Block, Handler};
use crate::engine::code::{Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Step};
use crate::engine::watch::Access;

/// An element type in memory, and the register type to which it is widened.
pub trait Element {
    type Memory: Integer;
    type Register: Lane;
    /// Converts bytes to an element. The slice has the element's size.
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

/// Returns the kind of access of a load.
pub fn read_of(inst: &Inst) -> Access {
    if inst.mods & space::STRONG != 0 { Access::StrongRead } else { Access::Read }
}

/// Returns the kind of access of a store.
pub fn write_of(inst: &Inst) -> Access {
    if inst.mods & space::STRONG != 0 { Access::StrongWrite } else { Access::Write }
}

/// The handler of `ld`. It loads one element into `d`, or several into the list of targets.
pub struct Load<E>(PhantomData<E>);

impl<E: Element> Handler for Load<E> {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let elements = inst.targets.len.max(1) as usize;
        block.touch_lanes(inst, elements * size_of::<E::Memory>(), mask, read_of(inst), touches);
    }

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
        // Lanes outside the mask repeat the read of the first lane, which saves a branch for each lane.
        for (index, &target) in targets.iter().enumerate() {
            let mut hosts = addresses;
            hosts.iter_mut().for_each(|host| *host = host.plus(index * size));
            let mut values = [E::Register::default(); LANES];
            gather::<E>(&hosts, &mut values);
            block.set(target, &values, mask);
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let uniform = block.affine_addresses(inst).filter(|addresses| addresses.is_uniform());
        let Some(Affine { base, .. }) = uniform else { return block.run_rows(inst) };
        let (code, size) = (block.launch.code, size_of::<E::Memory>());
        let single = [inst.d];
        let targets = if inst.targets.len == 0 { &single[..] } else { inst.targets.of(&code.lists) };
        let bytes = (size * targets.len()) as u64;
        let Some(host) = block.locate_stretch(inst, base, bytes, bytes) else { return block.each_warp(inst) };
        for (index, &target) in targets.iter().enumerate() {
            let value = E::widen(host.plus(index * size).read());
            block.set_affine::<E::Register>(target, Affine::uniform(value.to_bits()));
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        let code = block.launch.code;
        let single = [inst.d];
        let targets = if inst.targets.len == 0 { &single[..] } else { inst.targets.of(&code.lists) };
        let size = size_of::<E::Memory>();
        let (bytes, warps) = (size * targets.len(), block.registers.warps());
        let stretch = if targets.len() == 1 { block.locate_rows(inst, size) } else { None };
        if let Some(host) = stretch {
            let d = block.target_rows::<E::Register>(inst.d);
            for warp in 0..warps {
                widen_row::<E, LANES>(host.plus(warp * size * LANES), block.registers.get_mut(d, warp));
            }
        } else {
            let rows = block.address_rows(inst);
            for warp in 0..warps {
                if targets.len() == 1 && load_halves::<E>(block, inst, rows, warp) {
                    continue;
                }
                let addresses = block.addresses_of(inst, rows, warp);
                let Some(base) = block.locate_row(inst, bytes as u64, &addresses) else {
                    return block.each_warp_from(inst, warp);
                };
                for (index, &target) in targets.iter().enumerate() {
                    let d = block.target_rows::<E::Register>(target);
                    let hosts = elements(base, &addresses, index, size);
                    gather::<E>(&hosts, block.registers.get_mut(d, warp));
                }
            }
        }
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        Step::Next
    }
}

/// The handler of `ld.param` for a kernel parameter at the offset `imm`. All lanes get the same value.
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

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let size = size_of::<E::Memory>();
        let lists = &block.launch.code.lists;
        let single = [inst.d];
        let targets = if inst.targets.len == 0 { &single[..] } else { inst.targets.of(lists) };
        let offset = inst.imm as usize;
        let Some(bytes) = block.launch.params.get(offset..offset + size * targets.len()) else {
            return block.each_warp(inst);
        };
        for (bytes, &target) in bytes.chunks_exact(size).zip(targets) {
            let value = E::widen(E::from_bytes(bytes));
            block.set_affine::<E::Register>(target, Affine::uniform(value.to_bits()));
        }
        Step::Next
    }
}

/// The handler of `st`. It stores one element from `b`, or several from the list of sources.
pub struct Store<E>(PhantomData<E>);

impl<E: Element> Handler for Store<E> {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let elements = inst.sources.len.max(1) as usize;
        block.touch_lanes(inst, elements * size_of::<E::Memory>(), mask, write_of(inst), touches);
    }

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
        if sources.len() == 1 && mask == ALL {
            scatter::<E>(&addresses, block.src::<E::Register>(sources[0]));
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

    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        if inst.sources.len > 0 || inst.a == NONE {
            return block.each_warp(inst);
        }
        let (size, warps) = (size_of::<E::Memory>(), block.registers.warps());
        if inst.mods & space::ORDERED != 0 {
            fence(Ordering::SeqCst);
        }
        let stretch = block.locate_rows(inst, size);
        let b = block.rows::<E::Register>(inst.b, 1);
        if let Some(host) = stretch {
            for warp in 0..warps {
                narrow_row::<E, LANES>(host.plus(warp * size * LANES), block.registers.get(b, warp));
            }
            return Step::Next;
        }
        let rows = block.address_rows(inst);
        for warp in 0..warps {
            let addresses = block.addresses_of(inst, rows, warp);
            let Some(base) = block.locate_row(inst, size as u64, &addresses) else {
                return block.each_warp_from(inst, warp);
            };
            scatter::<E>(&elements(base, &addresses, 0, size), block.registers.get(b, warp));
        }
        Step::Next
    }
}

/// The handler of `membar` and `fence`.
pub struct Fence;

impl Handler for Fence {
    const WATCHED: bool = true;
    const FENCES: bool = true;

    #[inline(always)]
    fn run(_block: &mut Block, _inst: &Inst, _mask: u32) -> Step {
        fence(Ordering::SeqCst);
        Step::Next
    }

    fn run_block(_block: &mut Block, _inst: &Inst) -> Step {
        fence(Ordering::SeqCst);
        Step::Next
    }
}

/// The handler of `cp.async`, which copies at once. The destination is `a` + `imm` in shared memory, and the source is
/// `b`. `mods` >> 8 is the number of bytes. If there is an operand `c`, only that many bytes are read and the rest are
/// zero.
pub struct CopyAsync;

impl Handler for CopyAsync {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let sources = block.src::<u64>(inst.b);
        for lane in set_lanes(mask) {
            let bytes = inst.mods >> 8;
            let used = if inst.c == NONE { bytes } else { block.src::<u32>(inst.c)[lane].min(bytes) };
            touch_each(sources, used.into(), 1 << lane, Access::Read, false, touches);
        }
    }

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
    /// Reads the first `used` bytes of an aligned piece of global memory. The other bytes need not be valid memory.
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

/// The handler of `isspacep`, which tests whether the generic address `a` is in the space in `mods`.
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
