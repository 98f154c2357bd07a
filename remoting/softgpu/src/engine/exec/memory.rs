//! Loads and stores (ISA 9.7.9): from lane addresses to checked host addresses to plain accesses.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use super::lanes::{ALL, LANES, Lane, set_lanes};
use super::{Block, Handler};
use crate::engine::code::{Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Step};

/// State spaces, in the low bits of a memory instruction's `mods`.
pub mod space {
    pub const GENERIC: u32 = 0;
    pub const GLOBAL: u32 = 1;
    pub const SHARED: u32 = 2;
    pub const LOCAL: u32 = 3;
    pub const PARAM: u32 = 4;
    pub const MASK: u32 = 7;
    /// The access orders others: acquire for a load, release for a store.
    pub const ORDERED: u32 = 8;
    /// The address operand is 32 bits wide.
    pub const NARROW: u32 = 16;
}

/// Lane addresses, one per lane.
pub type Addresses = [u64; LANES];

/// Why a lane may not access an address.
pub enum Bad {
    Outside,
    Misaligned,
}

impl Block<'_> {
    /// The addresses an instruction names: its operand `a` plus its offset.
    #[inline(always)]
    pub fn addresses(&self, inst: &Inst) -> Addresses {
        let offset = inst.imm as u64;
        let mut addresses = [offset; LANES];
        if inst.a == NONE {
            return addresses;
        }
        if inst.mods & space::NARROW != 0 {
            let base = self.src::<u32>(inst.a);
            for lane in 0..LANES {
                addresses[lane] = u64::from(base[lane].wrapping_add(offset as u32));
            }
        } else {
            let base = self.src::<u64>(inst.a);
            for lane in 0..LANES {
                addresses[lane] = base[lane].wrapping_add(offset);
            }
        }
        addresses
    }

    /// Turns addresses of a state space into host addresses, checked for `bytes` each. Lanes outside the mask get the
    /// address of the first lane inside.
    #[inline(always)]
    pub fn locate(&mut self, inst: &Inst, bytes: u64, mask: u32) -> Result<Addresses, Step> {
        let mut addresses = self.addresses(inst);
        if mask != ALL {
            let first = addresses[mask.trailing_zeros() as usize & 31];
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = if mask >> lane & 1 == 1 { *address } else { first };
            }
        }
        let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
        for &address in &addresses {
            low = low.min(address);
            high = high.max(address);
            bits |= address;
        }
        let end = high.wrapping_add(bytes);
        if bits & (bytes - 1) != 0 || end < high {
            return Err(self.locate_fault(inst, bytes, &addresses, mask));
        }
        match inst.mods & space::MASK {
            space::GLOBAL | space::GENERIC if self.in_range(low, end) => Ok(addresses),
            space::SHARED if end <= u64::from(self.shared_bytes()) => {
                let base = self.shared.as_mut_ptr() as u64;
                for address in &mut addresses {
                    *address += base;
                }
                Ok(addresses)
            }
            _ => self.locate_each(inst, bytes, addresses, mask),
        }
    }

    /// Whether `[low, end)` lies in one of the device ranges used lately, or in one of the map.
    #[inline(always)]
    fn in_range(&mut self, low: u64, end: u64) -> bool {
        let generation = self.launch.memory.generation();
        if generation == self.warp.generation {
            let (base, len) = self.warp.ranges[0];
            if low >= base && end <= base + len {
                return true;
            }
        }
        self.find_range(low, end, generation)
    }

    fn find_range(&mut self, low: u64, end: u64, generation: u64) -> bool {
        let warp = &mut self.warp;
        if generation != warp.generation {
            warp.generation = generation;
            warp.ranges = Default::default();
        }
        for index in 1..warp.ranges.len() {
            let (base, len) = warp.ranges[index];
            if low >= base && end <= base + len {
                warp.ranges.swap(0, index);
                return true;
            }
        }
        let Some((base, len)) = self.launch.memory.find(low) else { return false };
        warp.ranges.rotate_right(1);
        warp.ranges[0] = (base, len);
        end <= base + len
    }

    #[inline(never)]
    fn locate_each(&mut self, inst: &Inst, bytes: u64, mut addresses: Addresses, mask: u32) -> Result<Addresses, Step> {
        for lane in set_lanes(mask) {
            match self.locate_one(inst.mods & space::MASK, addresses[lane], bytes, lane) {
                Ok(host) => addresses[lane] = host,
                Err(bad) => return Err(self.access_fault(bad, bytes, addresses[lane], lane)),
            }
        }
        let first = addresses[mask.trailing_zeros() as usize & 31];
        for lane in set_lanes(!mask) {
            addresses[lane] = first;
        }
        Ok(addresses)
    }

    /// The host address of one lane's access.
    pub fn locate_one(&mut self, space: u32, address: u64, bytes: u64, lane: usize) -> Result<u64, Bad> {
        if address & (bytes - 1) != 0 {
            return Err(Bad::Misaligned);
        }
        let within = |offset: u64, size: u64| {
            let end = offset.checked_add(bytes);
            if end.is_some_and(|end| end <= size) { Ok(offset) } else { Err(Bad::Outside) }
        };
        match space {
            space::SHARED => Ok(within(address, self.shared_bytes().into())? + self.shared.as_mut_ptr() as u64),
            space::LOCAL => Ok(within(address, self.warp.local.stride().into())? + self.warp.local.base(lane)),
            space::PARAM => Ok(within(address, self.launch.params.len() as u64)? + self.launch.params.as_ptr() as u64),
            space::GLOBAL => self.locate_global(address, bytes),
            _ if address < SHARED_WINDOW => self.locate_global(address, bytes),
            _ if address < LOCAL_WINDOW => self.locate_one(space::SHARED, address - SHARED_WINDOW, bytes, lane),
            _ if address < PARAM_WINDOW => self.locate_one(space::LOCAL, address - LOCAL_WINDOW, bytes, lane),
            _ => self.locate_one(space::PARAM, address - PARAM_WINDOW, bytes, lane),
        }
    }

    fn locate_global(&mut self, address: u64, bytes: u64) -> Result<u64, Bad> {
        match address.checked_add(bytes) {
            Some(end) if self.in_range(address, end) => Ok(address),
            _ => Err(Bad::Outside),
        }
    }

    #[cold]
    fn locate_fault(&mut self, inst: &Inst, bytes: u64, addresses: &Addresses, mask: u32) -> Step {
        for lane in set_lanes(mask) {
            if let Err(bad) = self.locate_one(inst.mods & space::MASK, addresses[lane], bytes, lane) {
                return self.access_fault(bad, bytes, addresses[lane], lane);
            }
        }
        self.access_fault(Bad::Outside, bytes, addresses[0], 0)
    }

    #[cold]
    pub fn access_fault(&mut self, bad: Bad, bytes: u64, address: u64, lane: usize) -> Step {
        match bad {
            Bad::Outside => self.fail(700, lane, format!("illegal access of {bytes} bytes at 0x{address:x}")),
            Bad::Misaligned => self.fail(716, lane, format!("misaligned access of {bytes} bytes at 0x{address:x}")),
        }
    }
}

/// Copies bytes between checked host addresses.
pub fn copy(from: u64, to: u64, bytes: usize) {
    // SAFETY: both ranges were found valid by `locate` or lie in memory of the block itself; they may overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
}

/// Reads bytes at a checked host address.
pub fn read_bytes(from: u64, bytes: &mut [u8]) {
    copy(from, bytes.as_mut_ptr() as u64, bytes.len());
}

/// Reads at a checked, aligned host address. Volatile: other threads, and the host, may write there meanwhile.
#[inline(always)]
pub fn read<T: Copy>(address: u64) -> T {
    // SAFETY: `locate` found the address valid for the size and aligned.
    unsafe { (address as *const T).read_volatile() }
}

#[inline(always)]
pub fn write<T: Copy>(address: u64, value: T) {
    // SAFETY: as in `read`; device memory is writable.
    unsafe { (address as *mut T).write_volatile(value) }
}

/// Reads a value from bytes.
#[inline(always)]
fn read_unaligned<T: Copy>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>());
    // SAFETY: there are enough bytes, and `T` is an integer of memory.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// All lanes at once, from `address` on.
#[inline(always)]
fn read_row<T: Copy>(address: u64) -> [T; LANES] {
    // SAFETY: every lane's element was found valid, and together they are this array.
    unsafe { (address as *const [T; LANES]).read_unaligned() }
}

#[inline(always)]
fn write_row<T: Copy>(address: u64, row: &[T; LANES]) {
    // SAFETY: as in `read_row`.
    unsafe { (address as *mut [T; LANES]).write_unaligned(*row) }
}

/// Whether lane i's address is lane 0's plus i times `bytes`.
#[inline(always)]
fn in_a_row(addresses: &Addresses, bytes: u64) -> bool {
    let mut differ = 0;
    for lane in 0..LANES {
        differ |= addresses[lane] ^ addresses[0].wrapping_add(lane as u64 * bytes);
    }
    differ == 0
}

#[inline(always)]
fn all_same(addresses: &Addresses) -> bool {
    addresses.iter().fold(0, |differ, address| differ | address ^ addresses[0]) == 0
}

/// An element in memory and the register it is widened to.
pub trait Element {
    type Memory: Copy + Default;
    type Register: Lane;
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
        let size = size_of::<E::Memory>() as u64;
        let code = block.launch.code;
        let single = [inst.d];
        let targets = if inst.list_len == 0 { &single[..] } else { &code.lists[inst.list_range()] };
        let bytes = size * targets.len() as u64;
        let addresses = match block.locate(inst, bytes, mask) {
            Ok(addresses) => addresses,
            Err(step) => return step,
        };
        if all_same(&addresses) {
            for (index, &target) in targets.iter().enumerate() {
                let value = E::widen(read(addresses[0] + index as u64 * size));
                block.set(target, &[value; LANES], mask);
            }
        } else if targets.len() == 1 && mask == ALL && in_a_row(&addresses, size) {
            let row = read_row::<E::Memory>(addresses[0]);
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
                    d[lane] = E::widen(read(addresses[lane] + index as u64 * size));
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
        let targets = if inst.list_len == 0 { &single[..] } else { &code.lists[inst.list_range()] };
        for (index, &target) in targets.iter().enumerate() {
            let params = block.launch.params;
            let offset = inst.imm as usize + index * size;
            let Some(bytes) = params.get(offset..offset + size) else {
                return block.access_fault(Bad::Outside, size as u64, offset as u64, 0);
            };
            let value = E::widen(read_unaligned(bytes));
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
        let size = size_of::<E::Memory>() as u64;
        let code = block.launch.code;
        let single = [inst.b];
        let sources = if inst.list_len == 0 { &single[..] } else { &code.lists[inst.list_range()] };
        let bytes = size * sources.len() as u64;
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
            write_row(addresses[0], &row);
        } else {
            for lane in set_lanes(mask) {
                for (index, &source) in sources.iter().enumerate() {
                    let value = E::narrow(block.src::<E::Register>(source)[lane]);
                    write(addresses[lane] + index as u64 * size, value);
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
            if used > 0 {
                // Alignment is that of the whole copy even where fewer bytes are read.
                if sources[lane] & u64::from(bytes - 1) != 0 {
                    return block.access_fault(Bad::Misaligned, bytes.into(), sources[lane], lane);
                }
                for offset in 0..u64::from(used) {
                    match block.locate_one(space::GLOBAL, sources[lane] + offset, 1, lane) {
                        Ok(host) => buffer[offset as usize] = read(host),
                        Err(bad) => return block.access_fault(bad, used.into(), sources[lane] + offset, lane),
                    }
                }
            }
            copy(buffer.as_ptr() as u64, targets[lane], bytes as usize);
        }
        Step::Next
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
