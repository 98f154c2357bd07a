//! Creation and destruction of contexts, both primary contexts and those that programs create.

use super::state::{Driver, Primary};
use crate::ffi::R;
use crate::memory::allocations::{Allocation, Kind};
use crate::process::device::Device;
use crate::process::handles;
use crate::streams::context::Context;
use driverapi::context_storage;
use driverapi::errors::CUDA_ERROR_INVALID_CONTEXT;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

impl Driver {
    fn primary(&self, device: &Device) -> MutexGuard<'_, Primary> {
        self.primaries[device.ordinal].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn retain_primary(&self, device: &Arc<Device>) -> R<usize> {
        let mut primary = self.primary(device);
        if self.contexts.get(device.primary).is_none() {
            let profile = self.config.profile.clone();
            let context = Context::new(device.primary, Arc::clone(device), primary.flags, profile, true)?;
            self.contexts.insert(device.primary, Arc::new(context));
        }
        primary.retained += 1;
        Ok(device.primary)
    }

    /// Returns any context. If there is none, the first device's primary context is retained and stays retained.
    pub fn any_context(&self) -> R<Arc<Context>> {
        if let Some(context) = self.contexts.all().into_iter().next() {
            return Ok(context);
        }
        let device = self.devices.first().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.contexts.get(self.retain_primary(device)?).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub fn release_primary(&self, device: &Device) -> R {
        let mut primary = self.primary(device);
        primary.retained = primary.retained.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if primary.retained == 0 { self.end_primary(device, false) } else { Ok(()) }
    }

    /// Ends the primary context. The next retain starts a new one. The call does not change the number of retains, as
    /// CUDA documents: each holder must still release the context. All its allocations are freed, also those from pools
    /// (NVIDIA's behaviour for pools was not measured).
    pub fn reset_primary(&self, device: &Device) -> R {
        let _primary = self.primary(device);
        self.end_primary(device, true)
    }

    /// Ends the primary context unless a reset has already ended it. The caller holds the device's lock.
    fn end_primary(&self, device: &Device, pools: bool) -> R {
        if self.contexts.get(device.primary).is_none() {
            return Ok(());
        }
        self.end_context(device.primary, pools)
    }

    pub fn primary_state(&self, device: &Device) -> (u32, bool) {
        let primary = self.primary(device);
        let context = self.contexts.get(device.primary);
        let flags = context.as_ref().map_or(primary.flags, |context| context.flags.load(Ordering::Relaxed));
        (flags, context.is_some())
    }

    pub fn set_primary_flags(&self, device: &Device, flags: u32) {
        self.primary(device).flags = flags;
        if let Some(context) = self.contexts.get(device.primary) {
            context.flags.store(flags, Ordering::Relaxed);
        }
    }

    /// Whether a handle names a context. This includes a primary context that is not active now.
    pub fn is_context(&self, id: usize) -> bool {
        self.contexts.get(id).is_some() || self.devices.iter().any(|device| device.primary == id)
    }

    pub fn create_context(&self, device: &Arc<Device>, flags: u32) -> R<usize> {
        let id = handles::mint();
        let context = Context::new(id, Arc::clone(device), flags, self.config.profile.clone(), false)?;
        self.contexts.insert(id, Arc::new(context));
        Ok(id)
    }

    /// Stops a context's work and frees its resources. Memory of pools belongs to the device, so it is freed only if
    /// `pools` is set.
    pub fn end_context(&self, id: usize, pools: bool) -> R {
        let context = self.contexts.get(id).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.forget_peers(id);
        self.forget_arrays(id);
        self.conditions.remove_where(|condition| condition.is_of(id));
        context_storage::drop_context(ptr::without_provenance_mut(id));
        self.contexts.remove(id).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        context.stop();
        self.streams.remove_where(|stream| stream.context.id == id);
        self.events.remove_where(|event| event.context == id);
        self.functions.remove_where(|function| function.module.context == id);
        self.modules.remove_where(|module| module.context == id);
        self.libraries.all().iter().for_each(|library| library.forget_context(id));
        let ends = |a: &Allocation| a.context == id && (pools || !matches!(a.kind, Kind::Pooled { .. }));
        for allocation in self.memory.all_where(ends) {
            // This fails if a free that was queued in the pool's own stream has already run.
            let _ = self.release_memory(&allocation);
        }
        Ok(())
    }

    /// Waits until all work that may use the memory has finished, as `cuMemFree` does.
    pub fn wait_before_free(&self, allocation: &Allocation) {
        if !self.config.profile.free_waits {
            return;
        }
        for context in self.contexts.all() {
            if allocation.kind.is_host() || context.device.ordinal == allocation.device {
                context.wait_for_all();
            }
        }
    }
}
