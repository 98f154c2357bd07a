//! The heap of device `malloc`. An image has one heap, which is created when a kernel first needs it.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::MemoryMap;

/// The default of `CU_LIMIT_MALLOC_HEAP_SIZE` in bytes.
const HEAP_BYTES: u64 = 8 << 20;
const ALIGN: u64 = 16;

#[derive(Default)]
pub struct Heap {
    arena: OnceLock<Arena>,
}

struct Arena {
    /// The heap's memory, in aligned units of 16 bytes. Kernels access it by address.
    _memory: Box<[u128]>,
    map: MemoryMap,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The free pieces and, below, the used pieces: length in bytes by first address.
    free: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
}

impl Heap {
    fn arena(&self, map: &MemoryMap) -> &Arena {
        self.arena.get_or_init(|| {
            let memory = vec![0u128; (HEAP_BYTES / ALIGN) as usize].into_boxed_slice();
            let state = State { free: BTreeMap::from([(memory.as_ptr() as u64, HEAP_BYTES)]), used: BTreeMap::new() };
            Arena { _memory: memory, map: map.clone(), state: Mutex::new(state) }
        })
    }

    /// Allocates memory, and makes it a valid range of its own in `map`. Returns 0 if the heap is exhausted.
    pub fn allocate(&self, map: &MemoryMap, bytes: u64) -> u64 {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(ALIGN) else { return 0 };
        let arena = self.arena(map);
        let mut state = arena.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((start, size)) = state.free.iter().find(|(_, size)| **size >= bytes).map(|(&s, &n)| (s, n)) else {
            return 0;
        };
        state.free.remove(&start);
        if size > bytes {
            state.free.insert(start + bytes, size - bytes);
        }
        state.used.insert(start, bytes);
        arena.map.insert(start, bytes);
        start
    }

    /// Frees an allocation. Returns false if there is none at `address`.
    pub fn release(&self, address: u64) -> bool {
        let Some(arena) = self.arena.get() else { return false };
        let mut state = arena.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut bytes) = state.used.remove(&address) else { return false };
        arena.map.remove(address);
        let mut start = address;
        if let Some(after) = state.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((&before, &size)) = state.free.range(..start).next_back()
            && before + size == start
        {
            start = before;
            bytes += size;
        }
        state.free.insert(start, bytes);
        true
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.get() {
            let state = arena.state.lock().unwrap_or_else(PoisonError::into_inner);
            for &start in state.used.keys() {
                arena.map.remove(start);
            }
        }
    }
}
