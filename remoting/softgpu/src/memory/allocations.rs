//! The allocations of the process: one table for device, pinned, registered and mapped memory, since one address means
//! one thing (unified addressing).

use crate::check;
use crate::ffi::R;
use crate::memory::arena::{self, Arena};
use crate::memory::peers::Peer;
use crate::memory::registered;
use crate::memory::shared_memory::Shared;
use crate::process::device::Device;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The alignment of `cuMemAlloc`, and the unit that memory is charged in.
pub const GRANULE: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    /// From `cuMemHostAlloc`.
    Pinned {
        flags: u32,
    },
    /// The program's own memory, from `cuMemHostRegister`.
    Registered {
        flags: u32,
    },
    /// From `cuMemAllocManaged`.
    Managed,
    /// From a stream-ordered pool.
    Pooled {
        pool: usize,
    },
    /// Memory of a graph's node, which charges for it itself.
    Graph,
    /// The globals of a module.
    Globals,
    /// Memory that kernels reach through textures and surfaces only.
    Array,
    /// Physical memory at a reserved address.
    Mapped {
        handle: usize,
    },
    /// Physical memory of the host at a reserved address.
    MappedHost {
        handle: usize,
    },
    /// Memory of another process, which is charged for it.
    Imported,
}

impl Kind {
    /// Memory that the program uses at the same address.
    pub fn is_host(self) -> bool {
        matches!(self, Kind::Pinned { .. } | Kind::Registered { .. } | Kind::Managed | Kind::MappedHost { .. })
    }

    /// The physical memory that is mapped.
    pub fn physical(self) -> Option<usize> {
        match self {
            Kind::Mapped { handle } | Kind::MappedHost { handle } => Some(handle),
            _ => None,
        }
    }

    /// Whether the checker watches it from its allocation on. It leaves out memory that the program may use on the
    /// host, and memory of other processes; pools and mappings report more of theirs.
    fn is_checked(self) -> bool {
        matches!(self, Kind::Device | Kind::Graph | Kind::Globals | Kind::Array)
    }

    fn alignment(self) -> u64 {
        let whole_pages = self.is_host() || matches!(self, Kind::Device | Kind::Imported);
        if whole_pages { arena::PAGE } else { GRANULE }
    }

    fn is_charged(self) -> bool {
        !self.is_host() && !matches!(self, Kind::Graph | Kind::Imported)
    }
}

#[derive(Clone, Debug)]
pub struct Allocation {
    pub base: u64,
    pub len: u64,
    pub kind: Kind,
    /// The ordinal of the device it is on or was made for.
    pub device: usize,
    pub context: usize,
    /// Unique in the process, never reused.
    pub id: u64,
    /// Whether a stream-ordered free is under way.
    pub freeing: bool,
}

impl Allocation {
    /// Bytes taken.
    pub fn reserved(&self) -> u64 {
        self.len.next_multiple_of(if self.kind.is_host() { arena::PAGE } else { GRANULE })
    }

    /// Bytes of addresses taken. What another process may have shares no page with anything else.
    fn span(&self) -> u64 {
        self.len.next_multiple_of(self.kind.alignment())
    }
}

pub struct Memory {
    pub devices: Vec<Arc<Device>>,
    arena: Mutex<Arena>,
    allocations: RwLock<BTreeMap<u64, Allocation>>,
    next_id: AtomicU64,
    pub peers: RwLock<Vec<Peer>>,
    shared: Mutex<Shared>,
    /// Addresses of mapped memory of the host that the program may use itself.
    open_to_host: RwLock<BTreeSet<u64>>,
}

impl Memory {
    pub fn new(devices: Vec<Arc<Device>>) -> R<Memory> {
        Ok(Memory {
            devices,
            arena: Mutex::new(Arena::reserve()?),
            allocations: RwLock::default(),
            next_id: AtomicU64::new(1),
            peers: RwLock::default(),
            shared: Mutex::default(),
            open_to_host: RwLock::default(),
        })
    }

    pub fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New memory, all zeros: freed ranges are discarded before their addresses are used again.
    pub fn allocate(&self, len: u64, kind: Kind, device: usize, context: usize) -> R<Allocation> {
        if len == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if len > 1 << 48 {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut allocation = self.describe(0, len, kind, device, context);
        let reserved = allocation.reserved();
        if kind.is_charged() {
            self.devices[device].charge(reserved)?;
        }
        let (span, alignment) = (allocation.span(), kind.alignment());
        let place = match kind {
            Kind::Globals => self.arena().take_for_code(span, alignment),
            _ => self.arena().take(span, alignment),
        };
        allocation.base = match place {
            Ok(base) => base,
            Err(code) => {
                if kind.is_charged() {
                    self.devices[device].discharge(reserved);
                }
                return Err(code);
            }
        };
        self.enter(allocation.clone());
        Ok(allocation)
    }

    fn describe(&self, base: u64, len: u64, kind: Kind, device: usize, context: usize) -> Allocation {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Allocation { base, len, kind, device, context, id, freeing: false }
    }

    /// Makes memory known that this table does not allocate: registered host memory and mapped physical memory.
    pub fn adopt(&self, base: u64, len: u64, kind: Kind, device: usize, context: usize) -> R {
        if self.overlaps(base, len) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.enter(self.describe(base, len, kind, device, context));
        Ok(())
    }

    fn enter(&self, allocation: Allocation) {
        if let Some(checker) = check::checker().filter(|_| allocation.kind.is_checked()) {
            checker.allocated(allocation.base, allocation.len);
        }
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        self.show_to_peers(&peers, &allocation);
        match allocation.kind {
            Kind::Mapped { .. } | Kind::MappedHost { .. } | Kind::Array => (),
            kind if kind.is_host() => self.devices.iter().for_each(|d| d.map.insert(allocation.base, allocation.len)),
            _ => self.devices[allocation.device].map.insert(allocation.base, allocation.len),
        }
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(allocation.kind, Kind::Registered { .. }) {
            registered::note(allocation.base, allocation.len);
        }
        allocations.insert(allocation.base, allocation);
    }

    pub fn overlaps(&self, base: u64, len: u64) -> bool {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let end = base.saturating_add(len);
        allocations.range(..end).next_back().is_some_and(|(_, a)| a.base + a.len > base)
    }

    /// Forgets the allocation that starts at `base`, if `expected` accepts it; its address may be used again.
    pub fn release(&self, base: u64, expected: impl Fn(&Allocation) -> bool) -> R<Allocation> {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        if !allocations.get(&base).is_some_and(expected) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // The table stays locked until the memory is free again: a thread that finds nothing being freed finds it free.
        let allocation = allocations.remove(&base).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        for device in &self.devices {
            device.map.remove(base);
        }
        if let Some(checker) = check::checker() {
            checker.released(base);
        }
        if matches!(allocation.kind, Kind::Registered { .. }) {
            registered::forget(base);
        } else if allocation.kind.physical().is_none() {
            let span = allocation.span();
            // Other processes keep what they share with this one.
            if self.shared().forget(allocation.id) {
                arena::unmap(base, span)?;
            } else {
                arena::discard(base, span);
            }
            self.arena().give_back(base, span);
            if allocation.kind.is_charged() {
                self.devices[allocation.device].discharge(allocation.reserved());
            }
        }
        Ok(allocation)
    }

    /// Marks pooled memory as being freed; a second free is refused while the first one waits in its stream.
    pub fn start_freeing(&self, base: u64) -> R<Allocation> {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        match allocations.get_mut(&base) {
            Some(a) if !a.freeing && matches!(a.kind, Kind::Pooled { .. } | Kind::Device) => {
                a.freeing = true;
                Ok(a.clone())
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let (_, allocation) = allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.len).then(|| allocation.clone())
    }

    /// Whether `[address, address + len)` may be read and written by the device: it lies in one allocation, or in
    /// neighbouring mapped ones.
    pub fn is_valid(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else { return false };
        let mut at = address;
        while at < end {
            let Some(a) = self.find(at) else { return false };
            let mapped = a.kind.physical().is_some();
            let seen_by_host = self.is_open_to_host(a.base);
            if mapped && !seen_by_host && !self.devices.iter().any(|d| d.map.covers(at))
                || !mapped && a.base + a.len < end
            {
                return false;
            }
            at = a.base + a.len;
        }
        len > 0 || self.find(address).is_some()
    }

    /// Whether the program may use memory of the host that is mapped here.
    pub fn is_open_to_host(&self, base: u64) -> bool {
        self.open_to_host.read().unwrap_or_else(PoisonError::into_inner).contains(&base)
    }

    pub fn open_to_host(&self, base: u64, open: bool) {
        let mut all = self.open_to_host.write().unwrap_or_else(PoisonError::into_inner);
        if open {
            all.insert(base)
        } else {
            all.remove(&base)
        };
    }

    pub fn is_device_address(&self, address: u64) -> bool {
        self.arena().contains(address)
    }

    pub fn all_where(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        allocations.values().filter(|a| wanted(a)).cloned().collect()
    }
}
