//! Memory that the device's driver takes by itself, for limits of contexts and for modules: charged to the share before
//! the driver is asked, and given back when the driver has. A context gives back what is left when it is destroyed.

use crate::Code;
use crate::devices::context::Live;
use crate::session::lock;
use driverapi::errors::CUDA_ERROR_UNSUPPORTED_LIMIT;
use driverapi::limits;
use protocol::{ContextLimit, ModuleUnload};

/// Sets a limit of a context.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room for it, `CUDA_ERROR_UNSUPPORTED_LIMIT`, or what the driver says.
/// The limit is then what it was.
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

/// Charges the share for a module, then loads it.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room for it, or those of `load`.
pub fn for_module<T>(live: &Live, bytes: u64, load: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
    let loaded = live.device.memory.with_quota(live, bytes, load)?;
    *lock(&live.taken.modules) += bytes;
    Ok(loaded)
}

/// Unloads a module and gives back its charge.
///
/// # Errors
/// The session's sticky error.
pub fn unload(live: &Live, module: u64, bytes: u64) -> Result<(), Code> {
    let mut modules = lock(&live.taken.modules);
    // The context is gone, and its charge with it.
    let Some(others) = modules.checked_sub(bytes) else { return Ok(()) };
    let (token, unloaded) = live.session.new_fence();
    live.session.post(0, &ModuleUnload { module, token })?;
    *modules = others;
    live.device.memory.put_back_after(live, bytes, unloaded, false);
    Ok(())
}
