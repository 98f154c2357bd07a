//! Memory pools. All pools of a device share its slabs. A pool only counts its allocations and stores settings.

use crate::Code;
use crate::devices::handles::{Kind, Table};
use crate::devices::{self, Access, Device, unreachable_device};
use crate::locks::{Ordered, Rank};
use crate::program::process;
use crate::session::{lock, mint};
use driverapi::errors::*;
use driverapi::types::CUmemoryPool;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, OnceLock};

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
    pub readers: Ordered<BTreeMap<i32, Access>>,
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
        let (id, settings) = (mint(), Mutex::new(settings));
        let readers = || Ordered::new(Rank::Readers, BTreeMap::new());
        POOLS
            .insert(|handle| Arc::new(Pool { handle, id, ordinal, is_default, max_size, settings, readers: readers() }))
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
        if let Entry::Vacant(reader) = self.readers.lock().entry(device.ordinal) {
            reader.insert(Access::new(device, self.device()?).map_err(unreachable_device)?);
        }
        Ok(())
    }

    /// Withdraws a device's access to the pool's memory.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn forbid(&self, device: &Device) -> Result<(), Code> {
        // The lock is released at the end of this statement: the end of an access waits for work.
        let access = self.readers.lock().remove(&device.ordinal);
        access.map_or(Ok(()), Access::end)
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

/// Returns the default and the current pool of a device. Makes them at the first call.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if there are too many pools, or `CUDA_ERROR_NOT_INITIALIZED`.
pub fn of_device(device: &Device) -> Result<&'static OfDevice, Code> {
    static ALL: OnceLock<Vec<OnceLock<OfDevice>>> = OnceLock::new();
    let devices = devices::all()?.len();
    let all = ALL.get_or_init(|| (0..devices).map(|_| OnceLock::new()).collect());
    let make = || {
        let default = Pool::new(device.ordinal, true, 0)?;
        let current = Mutex::new(Arc::clone(&default));
        Some(OfDevice { default, current })
    };
    usize::try_from(device.ordinal).ok().and_then(|place| once(all.get(place)?, make)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Returns the value of a slot. If it has none, `make` makes it, on one thread at a time. Returns `None` if `make` does.
fn once<T>(slot: &OnceLock<T>, make: impl FnOnce() -> Option<T>) -> Option<&T> {
    static MAKING: Mutex<()> = Mutex::new(());
    if slot.get().is_none() {
        let _making = lock(&MAKING);
        if slot.get().is_none() {
            let _ = slot.set(make()?);
        }
    }
    slot.get()
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
    let of_device = of_device(pool.device()?)?;
    let mut current = lock(&of_device.current);
    if current.id == pool.id {
        *current = Arc::clone(&of_device.default);
    }
    POOLS.remove(handle.addr());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::once;
    use std::sync::OnceLock;

    #[test]
    fn a_full_table_is_no_value_and_the_next_call_tries_again() {
        let slot = OnceLock::new();
        assert_eq!(once(&slot, || None), None);
        assert_eq!(once(&slot, || Some(1)), Some(&1));
        assert_eq!(once(&slot, || panic!("it is made once")), Some(&1));
    }
}
