//! Memory pools. All pools of a device share its slabs. A pool only counts its allocations and stores settings.

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

/// The program's settings, and the peak values since the program last reset them.
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
    /// Whether this is the device's own pool, which cannot be destroyed.
    is_default: bool,
    pub max_size: u64,
    pub settings: Mutex<Settings>,
    /// The other devices that may access the pool's memory, by ordinal.
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

    /// Returns the device of the pool.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub fn device(&self) -> Result<&'static Device, Code> {
        devices::get(self.ordinal)
    }

    /// Gives a device access to the pool's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE` if the device cannot access memory of the pool's device.
    pub fn allow(&self, device: &'static Device) -> Result<(), Code> {
        if let Entry::Vacant(reader) = lock(&self.readers).entry(device.ordinal) {
            reader.insert(Access::new(device, self.device()?).map_err(unreachable_device)?);
        }
        Ok(())
    }

    /// Withdraws a device's access to the pool's memory.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn forbid(&self, device: &Device) -> Result<(), Code> {
        lock(&self.readers).remove(&device.ordinal).map_or(Ok(()), Access::end)
    }

    /// Returns the number of bytes that the program has allocated from the pool. The pool reserves exactly these bytes.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub fn used(&self) -> Result<u64, Code> {
        Ok(self.device()?.memory.pool_use(self.id))
    }

    /// Updates the peak values for an allocation of `size` bytes, and checks the pool's own limit.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the allocation would exceed the limit.
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

/// The default pool and the current pool of a device.
pub struct OfDevice {
    /// The pool that the device has from the start.
    pub default: Arc<Pool>,
    /// The pool for stream-ordered allocations that do not name a pool.
    pub current: Mutex<Arc<Pool>>,
}

/// Returns the default and the current pool of a device.
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

/// Creates a pool. `max_size` is its limit in bytes, or 0 for none.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there are too many pools.
pub fn create(ordinal: i32, max_size: u64) -> Result<Arc<Pool>, Code> {
    Pool::new(ordinal, false, max_size).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Returns the pool with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is none.
pub fn get(handle: CUmemoryPool) -> Result<Arc<Pool>, Code> {
    process::check_initialised()?;
    POOLS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Returns the handle of the pool with this id, or 0 if there is none.
pub fn handle_of(id: u64) -> usize {
    if id == 0 { 0 } else { POOLS.find_map(|pool| (pool.id == id).then_some(pool.handle)).unwrap_or(0) }
}

/// Destroys a pool. Its allocations stay valid. If it is the current pool of a device, the default pool becomes
/// current.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, also for a device's default pool.
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
