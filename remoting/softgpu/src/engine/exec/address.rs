//! Conversion of lanes' addresses to checked host addresses.

use super::Block;
use super::affine::Affine;
use super::host::Host;
use super::lanes::{ALL, LANES, set_lanes};
use super::registers::Rows;
use crate::engine::code::{Inst, LOCAL_WINDOW, NONE, PARAM_WINDOW, SHARED_WINDOW, Step};

/// The state spaces, which are in the low bits of a memory instruction's `mods`, and the flags behind them.
pub mod space {
    pub const GENERIC: u32 = 0;
    pub const GLOBAL: u32 = 1;
    pub const SHARED: u32 = 2;
    pub const LOCAL: u32 = 3;
    pub const PARAM: u32 = 4;
    pub const MASK: u32 = 7;
    /// Whether the access orders other accesses: a load acquires, and a store releases.
    pub const ORDERED: u32 = 8;
    /// Whether the address operand is 32 bits wide.
    pub const NARROW: u32 = 16;
    /// Whether the access is strong, so that it may race with accesses of other threads.
    pub const STRONG: u32 = 32;
}

/// The addresses of an instruction as the kernel sees them, one for each lane.
pub type Addresses = [u64; LANES];

/// Whether all accesses of `bytes` bytes are aligned and inside the `len` bytes from `base`.
#[inline(always)]
fn all_within(addresses: &Addresses, bytes: u64, base: u64, len: u64) -> bool {
    let Some(limit) = len.checked_sub(bytes) else { return false };
    let mut bad = false;
    for &address in addresses {
        bad |= (address.wrapping_sub(base) > limit) | (address & (bytes - 1) != 0);
    }
    !bad
}

/// The rows of the register that contains an instruction's base address, for a block in lockstep.
#[derive(Clone, Copy)]
pub enum AddressRows {
    Narrow(Rows<u32>),
    Wide(Rows<u64>),
}

/// The reason why a lane may not access an address.
pub enum Bad {
    Outside,
    Misaligned,
}

impl Block<'_> {
    /// Returns an instruction's addresses: its operand `a` plus its offset.
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

    /// Returns an instruction's addresses in a block in lockstep, or `None` if they are not affine.
    #[inline(always)]
    pub fn affine_addresses(&self, inst: &Inst) -> Option<Affine> {
        let offset = inst.imm as u64;
        if inst.a == NONE {
            return Some(Affine::uniform(offset));
        }
        if inst.mods & space::NARROW != 0 {
            let base = self.affine::<u32>(inst.a)?;
            return Some(Affine { base: (base.base as u32).wrapping_add(offset as u32).into(), ..base });
        }
        let base = self.affine::<u64>(inst.a)?;
        Some(Affine { base: base.base.wrapping_add(offset), ..base })
    }

    /// Returns the host address of a range in a state space that all threads of a block share. Returns `None` if the
    /// range is not valid or not aligned to the size of its elements.
    #[inline(always)]
    pub fn locate_stretch(&mut self, inst: &Inst, address: u64, bytes: u64, element: u64) -> Option<Host> {
        let end = address.checked_add(bytes)?;
        if address & (element - 1) != 0 {
            return None;
        }
        match inst.mods & space::MASK {
            space::GLOBAL | space::GENERIC => self.in_range(address, end).then(|| Host::checked(address)),
            space::SHARED if end <= u64::from(self.shared_bytes()) => {
                Some(Host::checked(self.shared.as_mut_ptr() as u64 + address))
            }
            _ => None,
        }
    }

    /// Returns the host address of the elements of a block in lockstep, or `None` if the elements are not contiguous.
    #[inline(always)]
    pub fn locate_rows(&mut self, inst: &Inst, element: usize) -> Option<Host> {
        let (addresses, last) = (self.affine_addresses(inst)?, self.last());
        let (step, stride) = (element as u64, element as u64 * (last.thread + 1));
        if addresses.step != step || (addresses.stride != stride && last.block > 0) {
            return None;
        }
        self.locate_stretch(inst, addresses.base, stride * (last.block + 1), step)
    }

    /// Returns the rows of the register with an instruction's base address.
    #[inline(always)]
    pub fn address_rows(&mut self, inst: &Inst) -> AddressRows {
        if inst.mods & space::NARROW != 0 {
            AddressRows::Narrow(self.rows(inst.a, 0))
        } else {
            AddressRows::Wide(self.rows(inst.a, 0))
        }
    }

    /// Returns an instruction's addresses in one warp of a block in lockstep.
    #[inline(always)]
    pub fn addresses_of(&self, inst: &Inst, rows: AddressRows, warp: usize) -> Addresses {
        let mut addresses = [0; LANES];
        match rows {
            AddressRows::Narrow(rows) => {
                let base = self.registers.get(rows, warp);
                for lane in 0..LANES {
                    addresses[lane] = u64::from(base[lane].wrapping_add(inst.imm as u32));
                }
            }
            AddressRows::Wide(rows) => {
                let base = self.registers.get(rows, warp);
                for lane in 0..LANES {
                    addresses[lane] = base[lane].wrapping_add(inst.imm as u64);
                }
            }
        }
        addresses
    }

    /// Converts addresses in a state space to host addresses, and checks `bytes` bytes at each. Lanes that are not in
    /// the mask get the address of the first lane that is.
    #[inline(always)]
    pub fn locate(&mut self, inst: &Inst, bytes: u64, mask: u32) -> Result<[Host; LANES], Step> {
        let mut addresses = self.addresses(inst);
        if mask != ALL {
            let first = addresses[mask.trailing_zeros() as usize & 31];
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = if mask >> lane & 1 == 1 { *address } else { first };
            }
        }
        let Some(base) = self.locate_row(inst, bytes, &addresses) else {
            return self.locate_each(inst, bytes, addresses, mask);
        };
        let mut hosts = [Host::checked(0); LANES];
        for lane in 0..LANES {
            hosts[lane] = Host::checked(base + addresses[lane]);
        }
        Ok(hosts)
    }

    /// Returns the number that converts a row of addresses to host addresses by addition. Returns `None` unless all
    /// addresses are in shared memory, or in one range of device memory.
    #[inline(always)]
    pub fn locate_row(&mut self, inst: &Inst, bytes: u64, addresses: &Addresses) -> Option<u64> {
        match inst.mods & space::MASK {
            space::GLOBAL | space::GENERIC => {
                let (base, len) = self.recent_range();
                let valid = all_within(addresses, bytes, base, len) || self.locate_in_ranges(bytes, addresses);
                valid.then_some(0)
            }
            space::SHARED => {
                let valid = all_within(addresses, bytes, 0, self.shared_bytes().into());
                valid.then_some(self.shared.as_mut_ptr() as u64)
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn locate_in_ranges(&mut self, bytes: u64, addresses: &Addresses) -> bool {
        let low = addresses.iter().fold(u64::MAX, |low, &address| low.min(address));
        let high = addresses.iter().fold(0, |high, &address| high.max(address));
        let bits = addresses.iter().fold(0, |bits, &address| bits | address);
        let end = high.wrapping_add(bytes);
        bits & (bytes - 1) == 0 && end >= high && self.in_range(low, end)
    }

    /// Returns the device range that was used last. It is empty if a range has been removed since then.
    #[inline(always)]
    fn recent_range(&self) -> (u64, u64) {
        if self.launch.memory.generation() == self.generation { self.ranges[0] } else { (0, 0) }
    }

    /// Whether `[low, end)` is in one of the recently used device ranges, or in another range of the map.
    #[inline(always)]
    fn in_range(&mut self, low: u64, end: u64) -> bool {
        let (base, len) = self.recent_range();
        low >= base && end <= base + len || self.find_range(low, end)
    }

    fn find_range(&mut self, low: u64, end: u64) -> bool {
        let generation = self.launch.memory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.ranges = Default::default();
        }
        for index in 1..self.ranges.len() {
            let (base, len) = self.ranges[index];
            if low >= base && end <= base + len {
                self.ranges.swap(0, index);
                return true;
            }
        }
        let Some((base, len)) = self.launch.memory.find(low) else { return false };
        self.ranges.rotate_right(1);
        self.ranges[0] = (base, len);
        end <= base + len
    }

    #[inline(never)]
    fn locate_each(&mut self, inst: &Inst, bytes: u64, addresses: Addresses, mask: u32) -> Result<[Host; LANES], Step> {
        let first = mask.trailing_zeros() as usize & 31;
        let mut hosts = [Host::checked(0); LANES];
        for lane in set_lanes(mask) {
            match self.locate_one(inst.mods & space::MASK, addresses[lane], bytes, lane) {
                Ok(host) => hosts[lane] = host,
                Err(bad) => return Err(self.access_fault(bad, bytes, addresses[lane], lane)),
            }
        }
        set_lanes(!mask).for_each(|lane| hosts[lane] = hosts[first]);
        Ok(hosts)
    }

    /// Returns the host address of one lane's access.
    pub fn locate_one(&mut self, space: u32, address: u64, bytes: u64, lane: usize) -> Result<Host, Bad> {
        if address & (bytes - 1) != 0 {
            return Err(Bad::Misaligned);
        }
        let within = |offset: u64, size: u64| {
            let end = offset.checked_add(bytes);
            if end.is_some_and(|end| end <= size) { Ok(offset) } else { Err(Bad::Outside) }
        };
        let host = |base: u64, size: u64| within(address, size).map(|offset| Host::checked(base + offset));
        match space {
            space::SHARED => host(self.shared.as_mut_ptr() as u64, self.shared_bytes().into()),
            space::LOCAL => host(self.warp.local.base(lane), self.warp.local.stride().into()),
            space::PARAM => host(self.launch.params.as_ptr() as u64, self.launch.params.len() as u64),
            space::GLOBAL => self.locate_global(address, bytes),
            _ if address < SHARED_WINDOW => self.locate_global(address, bytes),
            _ if address < LOCAL_WINDOW => self.locate_one(space::SHARED, address - SHARED_WINDOW, bytes, lane),
            _ if address < PARAM_WINDOW => self.locate_one(space::LOCAL, address - LOCAL_WINDOW, bytes, lane),
            _ => self.locate_one(space::PARAM, address - PARAM_WINDOW, bytes, lane),
        }
    }

    fn locate_global(&mut self, address: u64, bytes: u64) -> Result<Host, Bad> {
        match address.checked_add(bytes) {
            Some(end) if self.in_range(address, end) => Ok(Host::checked(address)),
            _ => Err(Bad::Outside),
        }
    }

    #[cold]
    pub fn access_fault(&mut self, bad: Bad, bytes: u64, address: u64, lane: usize) -> Step {
        match bad {
            Bad::Outside => self.fail(700, lane, format!("illegal access of {bytes} bytes at 0x{address:x}")),
            Bad::Misaligned => self.fail(716, lane, format!("misaligned access of {bytes} bytes at 0x{address:x}")),
        }
    }
}
