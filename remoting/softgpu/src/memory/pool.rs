//! Stream-ordered memory pools. A pool returns freed memory to the device at once.

use crate::ffi::R;
use crate::memory::allocations::Allocation;
use driverapi::attributes::{
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct Pool {
    pub id: usize,
    pub device: usize,
    /// The maximum number of bytes of the pool, or 0 for no limit.
    pub max_bytes: u64,
    /// Whether `cuMemPoolDestroy` was called. The pool is removed when its last allocation is freed.
    pub destroyed: AtomicBool,
    usage: Mutex<Usage>,
    settings: Mutex<HashMap<u32, u64>>,
    peers: Mutex<BTreeSet<usize>>,
}

#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub used: u64,
    pub high: u64,
}

impl Pool {
    pub fn new(id: usize, device: usize, max_bytes: u64) -> Pool {
        Pool {
            id,
            device,
            max_bytes,
            destroyed: AtomicBool::new(false),
            usage: Mutex::default(),
            settings: Mutex::default(),
            peers: Mutex::default(),
        }
    }

    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the attributes that a program may set and read.
    pub fn settings(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool may give memory that one stream freed to another stream, and order the two streams itself. This
    /// holds unless a program disables both ways of reuse:
    /// <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html>, `CUmemPool_attribute`.
    pub fn orders_reuse(&self) -> bool {
        let settings = self.settings();
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES]
            .iter()
            .any(|way| settings.get(way).is_none_or(|&on| on != 0))
    }

    /// Returns the other devices that can access the pool's memory.
    pub fn peers(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `allocate` and counts `bytes` if it succeeds. Fails if the pool's limit would be exceeded.
    pub fn add<T>(&self, bytes: u64, allocate: impl FnOnce() -> R<T>) -> R<T> {
        let mut usage = self.usage();
        let used = usage.used.checked_add(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if self.max_bytes != 0 && used > self.max_bytes {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let got = allocate()?;
        *usage = Usage { used, high: usage.high.max(used) };
        Ok(got)
    }

    /// Calls `release` and subtracts the freed memory. The lock is held during both, so the count always matches.
    pub fn remove(&self, release: impl FnOnce() -> R<Allocation>) -> R {
        let mut usage = self.usage();
        usage.used = usage.used.saturating_sub(release()?.len);
        Ok(())
    }
}
