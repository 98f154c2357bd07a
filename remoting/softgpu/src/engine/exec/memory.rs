//! Loads, stores and asynchronous copies (ISA 9.7.9).

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use super::address::{AddressRows, Addresses};
pub use super::address::{Bad, space};
use super::affine::Affine;
use super::host::{Host, Integer};
use super::lanes::{ALL, LANES, Lane, set_lanes};
use super::{Block, Handler};
use crate::engine::code::{Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Step};

/// Half a warp: blocks are often 16 threads wide, and 16 words fill a vector register.
const HALF: usize = LANES / 2;

/// Whether lane i's address is lane 0's plus i times `bytes`.
#[inline(always)]
fn in_a_row(hosts: &[Host], bytes: usize) -> bool {
    let mut differ = 0;
    for (lane, host) in hosts.iter().enumerate() {
        differ |= host.address() ^ hosts[0].address().wrapping_add((lane * bytes) as u64);
    }
    differ == 0
}

/// Reads an element per lane.
#[inline(always)]
fn gather<E: Element>(hosts: &[Host; LANES], values: &mut [E::Register; LANES]) {
    for (values, hosts) in values.chunks_exact_mut(HALF).zip(hosts.chunks_exact(HALF)) {
        if in_a_row(hosts, 0) {
            values.fill(E::widen(hosts[0].read()));
        } else if in_a_row(hosts, size_of::<E::Memory>()) {
            widen_row::<E, HALF>(hosts[0], values);
        } else {
            for lane in 0..HALF {
                values[lane] = E::widen(hosts[lane].read());
            }
        }
    }
}

#[inline(always)]
fn widen_row<E: Element, const N: usize>(host: Host, values: &mut [E::Register]) {
    let row = host.read_row::<E::Memory, N>();
    for (value, &element) in values.iter_mut().zip(&row) {
        *value = E::widen(element);
    }
}

#[inline(always)]
fn narrow_row<E: Element, const N: usize>(host: Host, values: &[E::Register]) {
    let mut row = [E::Memory::default(); N];
    for (element, &value) in row.iter_mut().zip(values) {
        *element = E::narrow(value);
    }
    host.write_row(&row);
}

/// Writes an element per lane, in the order of lanes.
#[inline(always)]
fn scatter<E: Element>(hosts: &[Host; LANES], values: &[E::Register; LANES]) {
    for (values, hosts) in values.chunks_exact(HALF).zip(hosts.chunks_exact(HALF)) {
        if in_a_row(hosts, size_of::<E::Memory>()) {
            narrow_row::<E, HALF>(hosts[0], values);
        } else {
            for lane in 0..HALF {
                hosts[lane].write(E::narrow(values[lane]));
            }
        }
    }
}

/// Loads a row of a block in step if in each half the addresses are the same or in a row. That is what tiles of 16 columns
/// look like, and needs no address of its own for every lane.
#[inline(always)]
fn load_halves<E: Element>(block: &mut Block, inst: &Inst, rows: AddressRows, warp: usize) -> bool {
    let size = size_of::<E::Memory>();
    let (low, high) = match rows {
        AddressRows::Narrow(rows) => {
            let (low, high) = halves(block.registers.get(rows, warp), size);
            (block.locate_half::<u32>(inst, low, size), block.locate_half::<u32>(inst, high, size))
        }
        AddressRows::Wide(rows) => {
            let (low, high) = halves(block.registers.get(rows, warp), size);
            (block.locate_half::<u64>(inst, low, size), block.locate_half::<u64>(inst, high, size))
        }
    };
    let (Some(low), Some(high)) = (low, high) else { return false };
    let d = block.target_rows::<E::Register>(inst.d);
    for (values, (host, same)) in block.registers.get_mut(d, warp).chunks_exact_mut(HALF).zip([low, high]) {
        if same {
            values.fill(E::widen(host.read()));
        } else {
            widen_row::<E, HALF>(host, values);
        }
    }
    true
}

/// The first lane's value, and the number of bytes by which the next ones grow: 0 or `size`; `None` for anything else.
type Half = Option<(u64, usize)>;

#[inline(always)]
fn halves<T: Lane + PartialEq>(row: &[T; LANES], size: usize) -> (Half, Half) {
    let grows_by = |half: &[T], step: usize| {
        let mut all = true;
        for (lane, value) in half.iter().enumerate() {
            all &= *value == T::from_bits(half[0].to_bits().wrapping_add((lane * step) as u64));
        }
        all
    };
    let half = |half: &[T]| {
        let step = if grows_by(half, 0) { Some(0) } else { Some(size).filter(|&size| grows_by(half, size)) };
        step.map(|step| (half[0].to_bits(), step))
    };
    (half(&row[..HALF]), half(&row[HALF..]))
}

impl Block<'_> {
    /// The host address of a half's first lane, and whether all have the same.
    #[inline(always)]
    fn locate_half<T: Lane>(&mut self, inst: &Inst, half: Half, size: usize) -> Option<(Host, bool)> {
        let (first, step) = half?;
        let address = T::from_bits(first.wrapping_add(inst.imm as u64)).to_bits();
        let host = self.locate_stretch(inst, address, (size + (HALF - 1) * step) as u64, size as u64)?;
        Some((host, step == 0))
    }
}

/// The addresses of element `index` of vectors whose addresses were checked.
#[inline(always)]
fn elements(base: u64, addresses: &Addresses, index: usize, size: usize) -> [Host; LANES] {
    let mut hosts = [Host::checked(0); LANES];
    for lane in 0..LANES {
        hosts[lane] = Host::checked(base + addresses[lane]).plus(index * size);
    }
    hosts
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
        // Lanes outside the mask repeat the first one's read, which saves a branch per lane.
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

/// `membar` and `fence`.
pub struct Fence;

impl Handler for Fence {
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
