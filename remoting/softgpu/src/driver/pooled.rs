//! Allocation and release of pool memory in stream order.

use super::state::Driver;
use crate::check;
use crate::ffi::R;
use crate::memory::allocations::{Allocation, Kind};
use crate::memory::pool::Pool;
use crate::process::device::Device;
use crate::streams::queue::Marker;
use crate::streams::stream::Stream;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

impl Driver {
    /// Locks and returns the handle of the pool that `cuMemAllocAsync` uses on a device.
    pub fn current_pool(&self, device: &Device) -> MutexGuard<'_, usize> {
        self.current_pools[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates from a pool. If there is too little memory and a free is queued, the call waits for all work of the
    /// stream's context, and tries again.
    pub fn allocate_from(&self, pool: &Pool, bytes: u64, stream: &Stream) -> R<Allocation> {
        let kind = Kind::Pooled { pool: pool.id };
        let peers = pool.peers();
        let attempt = || pool.add(bytes, || self.memory.allocate(bytes, kind, pool.device, stream.context.id));
        let allocation = match attempt() {
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                if !self.memory.all_where(|a| a.freeing).is_empty() {
                    stream.context.ends().iter().for_each(Marker::wait);
                }
                attempt()
            }
            result => result,
        }?;
        if let Some(checker) = check::checker() {
            checker.allocated_in_order(allocation.base, allocation.len, &stream.place_now(), pool.orders_reuse());
        }
        peers.iter().for_each(|&device| self.devices[device].map.insert(allocation.base, allocation.len));
        Ok(allocation)
    }

    /// Queues a free in the stream. The free also runs if the context has faulted.
    pub fn free_in_order(self: &'static Driver, address: u64, stream: &Stream) -> R {
        let allocation = self.memory.start_freeing(address)?;
        let work = move || {
            if let Some(checked) = check::current() {
                checked.frees(allocation.base, allocation.len);
            }
            // This fails only if the context was destroyed, and then the memory is already freed.
            let _ = self.release_memory(&allocation);
        };
        stream.submit(Vec::new(), work).map(drop)
    }

    /// Frees device memory of each kind that `cuMemFree` accepts.
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
