//! Modules that the driver has loaded, and the memory that it took for them.

use super::{Driver, Handle, Result};
use driverapi::errors::CUDA_ERROR_INVALID_HANDLE;
use std::sync::{Arc, PoisonError, RwLock};

/// Memory that a device's driver takes by itself, charged before the driver is called.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub device: u32,
    pub bytes: u64,
}

/// A module of the driver, for jobs that may run while another job wants to unload it.
#[derive(Debug)]
pub struct LoadedModule {
    pub handle: Handle,
    pub taken: Taken,
    unloaded: RwLock<bool>,
}

impl LoadedModule {
    pub fn new(handle: Handle, taken: Taken) -> Arc<Self> {
        Arc::new(LoadedModule { handle, taken, unloaded: RwLock::new(false) })
    }

    /// Runs `job` while the module stays loaded.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was unloaded; otherwise that of `job`.
    pub fn with<T>(&self, job: impl FnOnce() -> Result<T>) -> Result<T> {
        let unloaded = self.unloaded.read().unwrap_or_else(PoisonError::into_inner);
        if *unloaded { Err(CUDA_ERROR_INVALID_HANDLE) } else { job() }
    }

    /// # Errors
    /// The driver's.
    pub fn unload(&self, driver: &Driver) -> Result<()> {
        *self.unloaded.write().unwrap_or_else(PoisonError::into_inner) = true;
        driver.module_unload(self.handle)
    }
}
