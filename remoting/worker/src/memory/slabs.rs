//! The state of a session's memory: the address range (*arena*), the mappings in it (*slabs*), and the grants.

use crate::driver::events::RealEvent;
use crate::driver::{Handle, Result};
use crate::guard::defences::{Defence, stands};
use crate::memory::offers::{Freed, Inherited, Offer};
use crate::memory::overwriting::Together;
use crate::memory::pieces::Pieces;
use crate::packets::Token;
use driverapi::arrays::Steps;
use driverapi::errors::*;
use protocol::SlabMap;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub struct Slab {
    pub size: u64,
    pub device: u32,
    pub memory: u64,
    /// The token of the slab if other processes of the lease may have it too. Then the lease is charged for it, and not
    /// the session.
    pub shared: Option<Token>,
    pub pieces: Pieces,
}

impl Slab {
    pub fn new(size: u64, device: u32, memory: u64) -> Slab {
        Slab { size, device, memory, shared: None, pieces: Pieces::default() }
    }
}

#[derive(Debug)]
pub struct Zeroing {
    pub number: u64,
    pub event: Rc<RealEvent>,
    pub context: u64,
}

#[derive(Debug)]
pub struct Array {
    pub steps: Steps,
    pub handle: Handle,
    pub context: u64,
    pub device: u32,
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub struct Memory {
    /// All reserved ranges. The last one is in use.
    pub arenas: Vec<(u64, u64)>,
    pub granularity: u64,
    /// The range in which new memory is zeroed. The next field lists the places in this range that are taken.
    pub hiding: Option<(u64, u64)>,
    pub hidden: Vec<(u64, u64)>,
    pub slabs: BTreeMap<u64, Slab>,
    pub granted: HashMap<u32, u64>,
    /// The used part of the grant: memory that is mapped, or that the driver has taken for modules and limits.
    pub used: HashMap<u32, u64>,
    /// Shared memory that was unmapped in this session. It is kept until the appliance says who overwrites it.
    pub parting: HashMap<Token, Slab>,
    /// Shared memory that was still mapped in this session when it ended.
    pub parting_at_end: HashSet<Token>,
    /// The ranges that helpers are unmapping.
    pub unmapping: Vec<(u64, u64)>,
    /// Memory to return to the appliance when no range is being unmapped any more.
    pub returning: Vec<(u32, u64)>,
    /// Memory received from other processes of the lease. It is granted and not mapped.
    pub inherited: Vec<Inherited>,
    /// The offer that the ending session makes of its memory. `None` while the session runs.
    pub offer: Option<Offer>,
    /// At the end of the session, the addresses of the slabs that helpers have overwritten.
    pub overwritten: Arc<Mutex<BTreeSet<u64>>>,
    /// The time left to wait for helpers at the end of the session.
    pub last_waits: Together,
    pub gives_way: bool,
    pub freed: Vec<Freed>,
    /// A request of another process of the lease for freed memory: the device and the least size.
    pub wanted: Option<(u32, u64)>,
    pub zeroings: HashMap<u32, Zeroing>,
    /// The pairs of a device and another device whose memory the first one may access.
    pub peers: BTreeSet<(u32, u32)>,
    /// The arrays, by their first address.
    pub arrays: BTreeMap<u64, Array>,
    /// The textures and surfaces: the context, and whether it is a surface.
    pub textures: HashMap<u64, (u64, bool)>,
    pub last_zeroing: u64,
    /// The variables of modules, which are outside the arena: address and size.
    pub globals: BTreeMap<u64, u64>,
}

pub fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

impl Memory {
    /// Returns the zeroings that a stream must wait for if it has waited for those up to `seen`. Zeroings of all
    /// devices count, because the stream may access memory of another device.
    pub fn zeroings_after(&self, seen: u64) -> Vec<Handle> {
        if self.last_zeroing <= seen {
            return Vec::new();
        }
        self.zeroings.values().filter(|z| z.number > seen).map(|z| z.event.handle).collect()
    }

    /// Removes the events of a context that was destroyed.
    pub fn forget_context(&mut self, context: u64) {
        self.zeroings.retain(|_, z| z.context != context);
    }

    pub fn granted(&mut self, device: u32, size: u64) {
        let granted = self.granted.entry(device).or_default();
        *granted = granted.saturating_add(size);
    }

    pub fn add_global(&mut self, address: u64, size: u64) {
        self.globals.insert(address, size);
    }

    /// Checks that a copy may access these bytes. The driver checks that memory is mapped at their addresses.
    pub fn check(&self, address: u64, bytes: u64) -> Result<()> {
        let within = |(base, size): (u64, u64)| {
            address >= base && address.checked_add(bytes).is_some_and(|end| end <= base + size)
        };
        let arena = self.arenas.last().copied().is_some_and(within);
        let global = || self.globals.range(..=address).next_back().is_some_and(|(a, s)| within((*a, *s)));
        if arena || global() || !stands(Defence::Range) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Checks that this range is free for a slab.
    pub fn check_place(&self, at: u64, len: u64) -> Result<()> {
        let (base, size) = self.arenas.last().copied().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let aligned = [at, len].iter().all(|n| n.is_multiple_of(self.granularity));
        let end = at.checked_add(len).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if len == 0 || !aligned || at < base || end > base + size {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let before = self.slabs.range(..end).next_back();
        if before.is_some_and(|(address, slab)| overlap((*address, slab.size), (at, len))) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let before = self.arrays.range(..end).next_back();
        if before.is_some_and(|(address, array)| overlap((*address, array.steps.span), (at, len))) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(())
    }

    pub fn check_slab(&self, c: &SlabMap) -> Result<()> {
        self.check_place(c.address, c.size)?;
        self.check_room(c.device, c.size)
    }

    /// Returns the unused part of the grant in bytes.
    pub fn room(&self, device: u32) -> u64 {
        let of = |sizes: &HashMap<u32, u64>| sizes.get(&device).copied().unwrap_or(0);
        of(&self.granted) - of(&self.used)
    }

    pub fn inherited_on(&self, device: u32) -> u64 {
        self.inherited.iter().filter(|each| each.device == device).map(|each| each.size).sum()
    }

    fn check_room(&self, device: u32, size: u64) -> Result<()> {
        if self.room(device) < size && stands(Defence::Room) { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Charges memory that the driver will take by itself.
    pub fn take(&mut self, device: u32, size: u64) -> Result<()> {
        self.check_room(device, size)?;
        *self.used.entry(device).or_default() += size;
        Ok(())
    }

    /// Ends the charge for unused memory.
    pub fn give_back(&mut self, device: u32, size: u64) {
        if let Some(used) = self.used.get_mut(&device) {
            *used -= size;
        }
    }

    pub fn insert(&mut self, c: &SlabMap) {
        self.slabs.insert(c.address, Slab::new(c.size, c.device, 0));
        *self.used.entry(c.device).or_default() += c.size;
    }

    /// Whether the whole range is GPU memory in one slab.
    pub fn is_mapped(&self, address: u64, size: u64) -> bool {
        let slab = self.slabs.range(..=address).next_back();
        slab.is_some_and(|(start, slab)| slab.memory != 0 && address + size <= start + slab.size)
    }

    pub fn remove(&mut self, address: u64) -> Option<Slab> {
        let slab = self.slabs.remove(&address)?;
        if slab.shared.is_none() {
            self.give_back(slab.device, slab.size);
        }
        Some(slab)
    }

    pub fn note_move(&mut self, from: u64, to: u64) {
        if let Some(slab) = self.slabs.remove(&from) {
            self.slabs.insert(to, slab);
        }
    }

    /// Marks a slab as shared. From now on the lease is charged for it, and the session's grant no longer contains it.
    pub fn share(&mut self, address: u64, token: Token) {
        let Some(slab) = self.slabs.get_mut(&address) else { return };
        slab.shared = Some(token);
        for sizes in [&mut self.granted, &mut self.used] {
            if let Some(bytes) = sizes.get_mut(&slab.device) {
                *bytes = bytes.saturating_sub(slab.size);
            }
        }
    }

    /// Returns the address, device and size of memory that the session has exported or imported, or `None` if it is not
    /// mapped.
    pub fn shared(&self, token: Token) -> Option<(u64, u32, u64)> {
        let mut holding = self.slabs.iter().filter(|(_, slab)| slab.shared == Some(token) && slab.memory != 0);
        holding.next().map(|(address, slab)| (*address, slab.device, slab.size))
    }
}
