//! Memory pools. All pools of a device share its slabs; a pool is an account and a set of preferences.

use crate::Code;
use crate::devices::handles::{Kind, Table};
use crate::devices::{self, Access, Device, unreachable_device};
use crate::program::process;
use crate::session::{lock, mint};
use driverapi::errors::*;
use driverapi::types::CUmemoryPool;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};

static POOLS: Table<Pool> = Table::new(Kind::Pool);

/// The program's settings, and the highest marks since it last reset them.
#[derive(Clone, Copy)]
pub struct Settings {
    pub follow_events: u32,
    pub opportunistic: u32,
    pub internal_dependencies: u32,
    pub release_threshold: u64,
    pub highest_used: u64,
    pub highest_reserved: u64,
}

pub struct Pool {
    pub handle: usize,
    pub id: u64,
    pub ordinal: i32,
    /// The device's own pool cannot be destroyed.
    is_default: bool,
    pub max_size: u64,
    pub settings: Mutex<Settings>,
    /// The other devices that reach its memory, by ordinal.
    pub readers: Mutex<BTreeMap<i32, Access>>,
}

impl Pool {
    fn new(ordinal: i32, is_default: bool, max_size: u64) -> Option<Arc<Pool>> {
        let settings = Settings {
            follow_events: 1,
            opportunistic: 1,
            internal_dependencies: 1,
            release_threshold: 0,
            highest_used: 0,
            highest_reserved: 0,
        };
        let (id, settings, readers) = (mint(), Mutex::new(settings), Mutex::default());
        POOLS.insert(|handle| Arc::new(Pool { handle, id, ordinal, is_default, max_size, settings, readers }))
    }

    /// # Errors
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub fn device(&self) -> Result<&'static Device, Code> {
        devices::get(self.ordinal)
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE` for a device that cannot reach the pool's.
    pub fn allow(&self, device: &'static Device) -> Result<(), Code> {
        if let Entry::Vacant(reader) = lock(&self.readers).entry(device.ordinal) {
            reader.insert(Access::new(device, self.device()?).map_err(unreachable_device)?);
        }
        Ok(())
    }

    /// # Errors
    /// The code of work that failed.
    pub fn forbid(&self, device: &Device) -> Result<(), Code> {
        lock(&self.readers).remove(&device.ordinal).map_or(Ok(()), Access::end)
    }

    /// Returns the bytes that the program has of this pool. All of them are reserved, and nothing else is.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub fn used(&self) -> Result<u64, Code> {
        Ok(self.device()?.memory.pool_use(self.id))
    }

    /// Updates the high marks after an allocation; refuses an allocation beyond the pool's own limit.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn admit(&self, size: u64) -> Result<(), Code> {
        let after = self.used()?.saturating_add(size);
        if self.max_size != 0 && after > self.max_size {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut settings = lock(&self.settings);
        settings.highest_used = settings.highest_used.max(after);
        settings.highest_reserved = settings.highest_reserved.max(after);
        Ok(())
    }
}

/// The pools of a device.
pub struct OfDevice {
    /// The pool that the device has from the start.
    pub default: Arc<Pool>,
    /// The pool that stream-ordered allocations come from if none is named.
    pub current: Mutex<Arc<Pool>>,
}

/// Returns the pools of a device.
pub fn of_device(device: &Device) -> Arc<OfDevice> {
    static ALL: Mutex<BTreeMap<i32, Arc<OfDevice>>> = Mutex::new(BTreeMap::new());
    let mut all = lock(&ALL);
    let of_device = all.entry(device.ordinal).or_insert_with(|| {
        let default = Pool::new(device.ordinal, true, 0).expect("the table has room for the devices");
        let current = Mutex::new(Arc::clone(&default));
        Arc::new(OfDevice { default, current })
    });
    Arc::clone(of_device)
}

/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there are too many.
pub fn create(ordinal: i32, max_size: u64) -> Result<Arc<Pool>, Code> {
    Pool::new(ordinal, false, max_size).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub fn get(handle: CUmemoryPool) -> Result<Arc<Pool>, Code> {
    process::check_initialised()?;
    POOLS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The handle of a pool by its id, 0 if there is none.
pub fn handle_of(id: u64) -> usize {
    if id == 0 { 0 } else { POOLS.find_map(|pool| (pool.id == id).then_some(pool.handle)).unwrap_or(0) }
}

/// Destroys a pool. Its allocations live on; a device that used it goes back to its own.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, for a device's own pool too.
pub fn destroy(handle: CUmemoryPool) -> Result<(), Code> {
    let pool = get(handle)?;
    if pool.is_default {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let of_device = of_device(pool.device()?);
    let mut current = lock(&of_device.current);
    if current.id == pool.id {
        *current = Arc::clone(&of_device.default);
    }
    POOLS.remove(handle.addr());
    Ok(())
}
