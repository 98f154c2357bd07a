//! The memory of all graphs of a process: the live memory, the effect of a launch, and the totals of each device.

use crate::{Backed, Graph, Memory, MemoryUse, Place, Result, Work, steps};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The number of bytes of graph memory on a device, now and at most.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemoryState {
    pub used: u64,
    pub most_used: u64,
    pub reserved: u64,
    pub most_reserved: u64,
}

#[derive(Default)]
struct Tables {
    /// The memory of all allocating nodes, by address.
    known: BTreeMap<u64, Weak<Memory>>,
    live: BTreeMap<u64, Arc<Backed>>,
    /// The largest numbers of used and of reserved bytes, by device.
    most: BTreeMap<i32, (u64, u64)>,
}

#[derive(Default)]
pub struct Memories(Mutex<Tables>);

fn used(live: &BTreeMap<u64, Arc<Backed>>, device: i32) -> u64 {
    live.values().filter(|backed| backed.0.device == device).map(|backed| backed.0.size).sum()
}

impl Tables {
    fn sums(&self, device: i32) -> (u64, u64) {
        let known = self.known.values().filter_map(Weak::upgrade);
        let reserved = known.filter(|memory| memory.device == device && *memory.users() > 0);
        let reserved = reserved.map(|memory| memory.size).sum();
        (used(&self.live, device), reserved)
    }

    fn note_most(&mut self, device: i32) {
        let now = self.sums(device);
        let most = self.most.entry(device).or_default();
        *most = (most.0.max(now.0), most.1.max(now.1));
    }
}

impl Memories {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the memory of a new node. Its addresses are released when no graph and no program refers to the memory any
    /// more.
    pub fn add(&self, at: (u64, u64), device: i32, place: impl Place + 'static) -> Arc<Memory> {
        let memory = Memory::new(at, device, place);
        let mut tables = self.tables();
        tables.known.retain(|_, known| known.strong_count() > 0);
        tables.known.insert(memory.address, Arc::downgrade(&memory));
        memory
    }

    /// Backs the memory that a graph allocates or frees. The memory stays backed while the caller (an executable graph)
    /// keeps the returned value.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`; then no memory is backed. `CUDA_ERROR_INVALID_VALUE` for a cycle.
    pub fn back<W: Work>(&self, graph: &Graph<W>) -> Result<Vec<Backed>> {
        if !graph.uses_memory() {
            return Ok(Vec::new());
        }
        let works: Vec<W> = steps(graph)?.into_iter().filter_map(|step| step.work).collect();
        let memories = works.iter().filter_map(Work::memory);
        let backed: Vec<Backed> = memories.map(|(_, memory)| Backed::new(memory)).collect::<Result<_>>()?;
        let mut tables = self.tables();
        backed.iter().for_each(|backed| tables.note_most(backed.0.device));
        Ok(backed)
    }

    /// Returns the memory of the node that allocates at `address`.
    pub fn get(&self, address: u64) -> Option<Arc<Memory>> {
        self.tables().known.get(&address).and_then(Weak::upgrade)
    }

    /// Applies a launch to the memory that its nodes allocate and free. A refused launch changes nothing.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a node would allocate memory that is already live, or free memory that is not
    /// live.
    pub fn launch<W: Work>(&self, graph: &Graph<W>, frees_first: bool) -> Result<()> {
        if !graph.uses_memory() {
            return Ok(());
        }
        let works: Vec<W> = steps(graph)?.into_iter().filter_map(|step| step.work).collect();
        let mut tables = self.tables();
        let mut live = tables.live.clone();
        if frees_first {
            for (_, memory) in works.iter().filter_map(Work::memory).filter(|(does, _)| *does == MemoryUse::Allocates) {
                live.remove(&memory.address);
            }
        }
        let mut most: BTreeMap<i32, u64> = BTreeMap::new();
        for (does, memory) in works.iter().filter_map(Work::memory) {
            let fits = match does {
                MemoryUse::Allocates => live.insert(memory.address, Arc::new(Backed::new(memory)?)).is_none(),
                MemoryUse::Frees => live.remove(&memory.address).is_some(),
            };
            if !fits {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let now = most.entry(memory.device).or_default();
            *now = used(&live, memory.device).max(*now);
        }
        let before = std::mem::replace(&mut tables.live, live);
        for (device, bytes) in most {
            let most = tables.most.entry(device).or_default();
            most.0 = most.0.max(bytes);
        }
        drop(tables);
        drop(before);
        Ok(())
    }

    /// Frees memory that a graph allocated. Returns `None` if the address does not belong to graph memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the memory is not live.
    pub fn free(&self, address: u64) -> Option<Result<()>> {
        self.get(address)?;
        let freed = self.tables().live.remove(&address);
        Some(freed.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE))
    }

    pub fn state(&self, device: i32) -> MemoryState {
        let mut tables = self.tables();
        tables.note_most(device);
        let (used, reserved) = tables.sums(device);
        let (most_used, most_reserved) = tables.most.get(&device).copied().unwrap_or_default();
        MemoryState { used, most_used, reserved, most_reserved }
    }

    /// Resets the maximum of used memory, or of reserved memory if `used` is not set.
    pub fn reset_most(&self, device: i32, used: bool) {
        let mut tables = self.tables();
        let now = tables.sums(device);
        let most = tables.most.entry(device).or_default();
        if used {
            most.0 = now.0;
        } else {
            most.1 = now.1;
        }
    }
}
