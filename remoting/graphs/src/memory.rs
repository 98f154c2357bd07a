//! Memory that graphs allocate and free.
//!
//! A node that allocates has its address from when it is made. There is memory at the address, and the device is charged
//! for it, as long as an executable graph allocates or frees it or the program has it: it is *backed*. A launch decides
//! whether the memory is the program's: then it is *live* until a node or a call frees it.

use crate::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Memory {
    pub address: u64,
    pub size: u64,
    /// The device's number.
    pub device: i32,
    place: Box<dyn Place>,
    /// The number of holders that have it backed.
    users: Mutex<usize>,
}

/// The addresses of a node's memory.
pub trait Place: Send + Sync {
    /// Puts memory there.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    fn back(&self) -> Result<()>;

    /// Takes it away again. Work that uses it may still run.
    fn take_away(&self);

    /// Gives up the addresses, at which no memory is any more.
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

/// Memory is backed as long as one of these exists.
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

/// A node's use of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryUse {
    Allocates,
    Frees,
}
