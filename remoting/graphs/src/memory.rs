//! Memory that graphs allocate and free.
//!
//! An allocating node has its address from its creation. The memory is *backed* while an executable graph allocates or
//! frees it, or while it is live. Only then physical memory is mapped at the address, and the device is charged for it.
//! A launch that allocates the memory makes it *live*. It stays live until a node or a call frees it.

use crate::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Memory {
    pub address: u64,
    pub size: u64,
    /// The ordinal of the device.
    pub device: i32,
    place: Box<dyn Place>,
    /// The number of [`Backed`] values for this memory.
    users: Mutex<usize>,
}

/// The address range of a node's memory.
pub trait Place: Send + Sync {
    /// Maps physical memory at the addresses.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the device has no more memory.
    fn back(&self) -> Result<()>;

    /// Unmaps the physical memory. Work that uses the memory may still be running.
    fn take_away(&self);

    /// Releases the addresses. No memory is mapped there any more.
    fn release(&self);
}

impl Memory {
    pub(crate) fn new((address, size): (u64, u64), device: i32, place: impl Place + 'static) -> Arc<Self> {
        Arc::new(Memory { address, size, device, place: Box::new(place), users: Mutex::new(0) })
    }

    pub(crate) fn users(&self) -> MutexGuard<'_, usize> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.place.release();
    }
}

/// A handle that keeps memory backed until it is dropped.
pub struct Backed(pub(crate) Arc<Memory>);

impl Backed {
    pub(crate) fn new(memory: &Arc<Memory>) -> Result<Backed> {
        let mut users = memory.users();
        if *users == 0 {
            memory.place.back()?;
        }
        *users += 1;
        Ok(Backed(Arc::clone(memory)))
    }
}

impl Drop for Backed {
    fn drop(&mut self) {
        let mut users = self.0.users();
        *users -= 1;
        if *users == 0 {
            self.0.place.take_away();
        }
    }
}

/// The use of memory by a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryUse {
    Allocates,
    Frees,
}
