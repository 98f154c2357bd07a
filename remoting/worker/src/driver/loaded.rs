//! Modules that the driver has loaded, and the device memory that they occupy.

use super::{Driver, Handle, Result};
use driverapi::errors::CUDA_ERROR_INVALID_HANDLE;
use std::sync::{Arc, PoisonError, RwLock};

/// Device memory that the driver allocates by itself. It is charged before the driver is called.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub device: u32,
    pub bytes: u64,
}

/// A module of the driver. Jobs may use the module while another job tries to unload it.
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

    /// Runs `job`. The module stays loaded meanwhile.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the module was unloaded, and the errors of `job`.
    pub fn with<T>(&self, job: impl FnOnce() -> Result<T>) -> Result<T> {
        let unloaded = self.unloaded.read().unwrap_or_else(PoisonError::into_inner);
        if *unloaded { Err(CUDA_ERROR_INVALID_HANDLE) } else { job() }
    }

    /// Unloads the module. Blocks while a job in [`Self::with`] uses it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn unload(&self, driver: &Driver) -> Result<()> {
        *self.unloaded.write().unwrap_or_else(PoisonError::into_inner) = true;
        driver.module_unload(self.handle)
    }
}
