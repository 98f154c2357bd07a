//! Memory that the device's driver takes for limits of contexts and for modules. The share is charged before the driver
//! is called, and the charge is returned when the driver has freed the memory. Destroying a context returns all its
//! charges.

use crate::Code;
use crate::devices::context::Live;
use crate::session::lock;
use driverapi::errors::CUDA_ERROR_UNSUPPORTED_LIMIT;
use driverapi::limits;
use protocol::{ContextLimit, ModuleUnload};

/// Sets a limit of a context.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room, `CUDA_ERROR_UNSUPPORTED_LIMIT`, or the driver's code. The limit
/// is then unchanged.
pub fn set_limit(live: &Live, limit: u32, value: u64) -> Result<(), Code> {
    let mut limits = lock(&live.taken.limits);
    let before = limits.get(&limit).copied().unwrap_or(0);
    let threads = limits::resident_threads(|which| live.device.attribute(which));
    let after = limits::taken(limit, value, threads).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?;
    let set = live.device.memory.with_quota(live, after.saturating_sub(before), || {
        live.session.call(0, &ContextLimit { context: live.id, limit, value })?.success()
    });
    live.answers.note_limit();
    set?;
    limits.insert(limit, after);
    live.device.memory.put_back_quota(live, before.saturating_sub(after))
}

/// Charges the share `bytes` bytes for a module, then loads it with `load`.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room, or those of `load`.
pub fn for_module<T>(live: &Live, bytes: u64, load: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    let loaded = live.device.memory.with_quota(live, bytes, load)?;
    *lock(&live.taken.modules) += bytes;
    Ok(loaded)
}

/// Unloads a module and returns its charge.
///
/// # Errors
/// The session's sticky error.
pub fn unload(live: &Live, module: u64, bytes: u64) -> Result<(), Code> {
    let mut modules = lock(&live.taken.modules);
    // The context has been destroyed, which returned the charge.
    let Some(others) = modules.checked_sub(bytes) else { return Ok(()) };
    let (token, unloaded) = live.session.new_fence();
    live.session.post(0, &ModuleUnload { module, token })?;
    *modules = others;
    live.device.memory.put_back_after(live, bytes, unloaded, false);
    Ok(())
}
