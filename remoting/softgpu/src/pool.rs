//! Stream-ordered memory pools. A pool keeps no memory for itself: what is freed goes back to the device at once.

use crate::driver::Driver;
use crate::ffi::R;
use crate::memory::{Allocation, Kind};
use crate::queue::Marker;
use crate::stream::Stream;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Pool {
    pub id: usize,
    pub device: usize,
    /// 0 for no limit of its own.
    pub max_bytes: u64,
    /// `cuMemPoolDestroy` was called; it goes when its last allocation does.
    pub destroyed: AtomicBool,
    usage: Mutex<Usage>,
    settings: Mutex<HashMap<u32, u64>>,
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
        }
    }

    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes a program may set and read back.
    pub fn settings(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts memory that `allocate` then gets, if it does.
    fn add<T>(&self, bytes: u64, allocate: impl FnOnce() -> R<T>) -> R<T> {
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
    fn remove(&self, release: impl FnOnce() -> R<Allocation>) -> R {
        let mut usage = self.usage();
        usage.used = usage.used.saturating_sub(release()?.len);
        Ok(())
    }
}

impl Driver {
    /// Memory that is free in stream order counts as free: if there is not enough, waits for frees under way.
    pub fn allocate_from(&self, pool: &Pool, bytes: u64, stream: &Stream) -> R<Allocation> {
        let kind = Kind::Pooled { pool: pool.id };
        let attempt = || pool.add(bytes, || self.memory.allocate(bytes, kind, pool.device, stream.context.id));
        match attempt() {
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                if !self.memory.all_where(|a| a.freeing).is_empty() {
                    stream.context.ends().iter().for_each(Marker::wait);
                }
                attempt()
            }
            result => result,
        }
    }

    /// Frees memory when the stream gets there. A faulted context frees too.
    pub fn free_in_order(self: &'static Driver, address: u64, stream: &Stream) -> R {
        let allocation = self.memory.start_freeing(address)?;
        let work = move || {
            // It can only be gone already if its context is, and then so is the memory.
            let _ = self.release_memory(&allocation);
        };
        stream.submit(Vec::new(), work).map(drop)
    }

    /// Frees device memory of any kind that `cuMemFree` accepts.
    pub fn release_memory(&self, allocation: &Allocation) -> R {
        let release = || self.memory.release(allocation.base, |a| a.id == allocation.id);
        let Kind::Pooled { pool } = allocation.kind else { return release().map(drop) };
        let pool = self.pools.get(pool).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pool.remove(release)?;
        self.drop_pool_if_unused(&pool);
        Ok(())
    }

    fn drop_pool_if_unused(&self, pool: &Arc<Pool>) {
        if pool.destroyed.load(Ordering::Acquire) && pool.usage().used == 0 {
            self.pools.remove(pool.id);
        }
    }

    pub fn destroy_pool(&self, pool: &Arc<Pool>) -> R {
        if self.devices.iter().any(|device| device.pool == pool.id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for device in &self.devices {
            let mut current = self.current_pool(device);
            if *current == pool.id {
                *current = device.pool;
            }
        }
        pool.destroyed.store(true, Ordering::Release);
        self.drop_pool_if_unused(pool);
        Ok(())
    }
}
