//! Stream-ordered memory pools. A pool keeps no memory for itself: what is freed goes back to the device at once.

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
    /// 0 for no limit of its own.
    pub max_bytes: u64,
    /// Set once `cuMemPoolDestroy` was called; the pool goes when its last allocation does.
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

    /// Attributes a program may set and read back.
    pub fn settings(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool may give memory that one stream freed to another one, and order that itself. It may unless a
    /// program switches both ways off: <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html>,
    /// `CUmemPool_attribute`.
    pub fn orders_reuse(&self) -> bool {
        let settings = self.settings();
        [CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES]
            .iter()
            .any(|way| settings.get(way).is_none_or(|&on| on != 0))
    }

    /// The other devices that reach its memory.
    pub fn peers(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts memory that `allocate` then gets, if it does.
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

    /// Gives back what `release` frees. Counted under the same lock, so that the two never disagree.
    pub fn remove(&self, release: impl FnOnce() -> R<Allocation>) -> R {
        let mut usage = self.usage();
        usage.used = usage.used.saturating_sub(release()?.len);
        Ok(())
    }
}
