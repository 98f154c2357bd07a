//! From the addresses of lanes to checked host addresses.

use super::Block;
use super::host::Host;
use super::lanes::{ALL, LANES, set_lanes};
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

/// Addresses as a kernel sees them, one per lane.
type Addresses = [u64; LANES];

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
    pub fn locate(&mut self, inst: &Inst, bytes: u64, mask: u32) -> Result<[Host; LANES], Step> {
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
            space::GLOBAL | space::GENERIC if self.in_range(low, end) => Ok(addresses.map(Host::checked)),
            space::SHARED if end <= u64::from(self.shared_bytes()) => {
                let base = self.shared.as_mut_ptr() as u64;
                Ok(addresses.map(|address| Host::checked(base + address)))
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

    /// The host address of one lane's access.
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
