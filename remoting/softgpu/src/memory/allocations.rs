//! The allocations of the process. With unified addressing an address is unique, so one table has the device memory,
//! pinned memory, registered memory and mapped memory.

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

/// The alignment of `cuMemAlloc` in bytes. Devices are charged in multiples of this unit.
pub const GRANULE: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    /// Page-locked memory of `cuMemHostAlloc`.
    Pinned {
        flags: u32,
    },
    /// The program's own memory, which `cuMemHostRegister` registered.
    Registered {
        flags: u32,
    },
    /// Managed memory of `cuMemAllocManaged`.
    Managed,
    /// Memory of a stream-ordered pool.
    Pooled {
        pool: usize,
    },
    /// Memory of a graph's node. The node charges the device itself.
    Graph,
    /// The global variables of a module.
    Globals,
    /// Memory that kernels access only through textures and surfaces.
    Array,
    /// Physical memory that is mapped at a reserved address.
    Mapped {
        handle: usize,
    },
    /// Physical memory of the host that is mapped at a reserved address.
    MappedHost {
        handle: usize,
    },
    /// Memory that another process exported. That process is charged.
    Imported,
}

impl Kind {
    /// Whether the program can use the memory at the same address.
    pub fn is_host(self) -> bool {
        matches!(self, Kind::Pinned { .. } | Kind::Registered { .. } | Kind::Managed | Kind::MappedHost { .. })
    }

    /// Returns the handle of the physical memory that is mapped, or `None` for other kinds.
    pub fn physical(self) -> Option<usize> {
        match self {
            Kind::Mapped { handle } | Kind::MappedHost { handle } => Some(handle),
            _ => None,
        }
    }

    /// Whether the overlap checker watches the memory from its allocation on. It does not watch memory that the host
    /// can use, or memory of other processes. Pools and mappings report their memory to the checker separately.
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
    /// The ordinal of the device where the memory is, or for which it was allocated.
    pub device: usize,
    pub context: usize,
    /// The allocation's number, unique in the process and never reused.
    pub id: u64,
    /// Whether a stream-ordered free of this memory is queued.
    pub freeing: bool,
}

impl Allocation {
    /// Returns the number of bytes that the device is charged.
    pub fn reserved(&self) -> u64 {
        self.len.next_multiple_of(if self.kind.is_host() { arena::PAGE } else { GRANULE })
    }

    /// Returns the number of bytes of addresses that the allocation uses. Memory that may be exported gets whole pages.
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
    /// The addresses of mapped host memory that the program may access.
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

    /// Allocates memory that is all zeros. The contents of a freed range are discarded before its addresses are used
    /// again.
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

    /// Adds memory that this table did not allocate: registered host memory or mapped physical memory.
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

    /// Frees the allocation that starts at `base` if `expected` accepts it. Its addresses may be used again.
    pub fn release(&self, base: u64, expected: impl Fn(&Allocation) -> bool) -> R<Allocation> {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        if !allocations.get(&base).is_some_and(expected) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // The table stays locked until the memory is free. A thread that sees no free under way can then rely on the
        // memory.
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
            // Other processes keep the memory that they share with this process.
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

    /// Marks pooled memory as being freed. A second free fails while the first one is queued.
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

    /// Returns the allocation that contains `address`.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let (_, allocation) = allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.len).then(|| allocation.clone())
    }

    /// Whether the device may access all of `[address, address + len)`. The range must be in one allocation, or in
    /// adjacent mappings.
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

    /// Whether the program may access the host memory that is mapped at `base`.
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
