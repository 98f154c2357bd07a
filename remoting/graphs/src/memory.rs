//! Memory that graphs allocate and free.
//!
//! A node that allocates has its memory, and so its address, from when it is made. A launch decides whether the memory is
//! the program's: then it is *live* until a node or a call frees it.

use crate::{Graph, Result, Work, steps};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub struct Memory {
    pub address: u64,
    pub size: u64,
    /// The device's number.
    pub device: i32,
    release: Box<dyn Fn(u64) + Send + Sync>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        (self.release)(self.address);
    }
}

/// What a node does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryUse {
    Allocates,
    Frees,
}

/// Bytes of graphs' memory on a device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemoryState {
    pub used: u64,
    pub most_used: u64,
    pub reserved: u64,
    pub most_reserved: u64,
}

#[derive(Default)]
struct Tables {
    /// Of nodes, by address.
    known: BTreeMap<u64, Weak<Memory>>,
    live: BTreeMap<u64, Arc<Memory>>,
    /// Used and reserved at most, by device.
    most: BTreeMap<i32, (u64, u64)>,
}

#[derive(Default)]
pub struct Memories(Mutex<Tables>);

fn used(live: &BTreeMap<u64, Arc<Memory>>, device: i32) -> u64 {
    live.values().filter(|memory| memory.device == device).map(|memory| memory.size).sum()
}

impl Tables {
    fn sums(&self, device: i32) -> (u64, u64) {
        let known = self.known.values().filter_map(Weak::upgrade);
        let reserved = known.filter(|memory| memory.device == device).map(|memory| memory.size).sum();
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

    /// Notes a new node's memory; `release` frees it when no graph and no program has it any more.
    pub fn add(
        &self,
        (address, size): (u64, u64),
        device: i32,
        release: impl Fn(u64) + Send + Sync + 'static,
    ) -> Arc<Memory> {
        let memory = Arc::new(Memory { address, size, device, release: Box::new(release) });
        let mut tables = self.tables();
        tables.known.retain(|_, known| known.strong_count() > 0);
        tables.known.insert(address, Arc::downgrade(&memory));
        tables.note_most(device);
        memory
    }

    /// The memory of a node, by its address.
    pub fn get(&self, address: u64) -> Option<Arc<Memory>> {
        self.tables().known.get(&address).and_then(Weak::upgrade)
    }

    /// What a launch does to the memory that its nodes allocate and free: nothing, if it is refused.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if memory would be allocated that the program still has, or freed that it has not.
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
                MemoryUse::Allocates => live.insert(memory.address, Arc::clone(memory)).is_none(),
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

    /// Frees what a graph allocated: `None` if the address is not of such memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if it is not allocated.
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

    /// Forgets how much was used, or reserved, at most.
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
