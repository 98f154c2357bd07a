//! Access of devices to the memory of other devices. Contexts enable it, and for pools the program sets it.

use super::state::Driver;
use crate::ffi::R;
use crate::memory::allocations::Kind;
use crate::memory::peers::Peer;
use crate::memory::pool::Pool;
use crate::streams::context::Context;
use driverapi::errors::*;

fn between(context: &Context, other: &Context) -> Peer {
    let (device, other_device) = (context.device.ordinal, other.device.ordinal);
    Peer { context: context.id, other: other.id, device, other_device }
}

impl Driver {
    pub fn enable_peer(&self, context: &Context, other: &Context) -> R {
        if context.id == other.id {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if !self.can_access(context.device.ordinal, other.device.ordinal) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        self.memory.add_peer(between(context, other))
    }

    pub fn disable_peer(&self, context: &Context, other: &Context) -> R {
        let peer = between(context, other);
        self.memory.remove_peers(|each| *each == peer)
    }

    /// Removes the access of a context that ends, and the access of other contexts to its memory.
    pub fn forget_peers(&self, context: usize) {
        // Most contexts have no peers, so there may be nothing to remove.
        let _ = self.memory.remove_peers(|peer| [peer.context, peer.other].contains(&context));
    }

    /// Whether a device can access another device's memory. The memory of all devices is on one machine, so the answer
    /// is true for any two different devices.
    pub fn can_access(&self, device: usize, other: usize) -> bool {
        device != other
    }

    /// Allows a device to access a pool's memory, or removes the access.
    pub fn set_pool_access(&self, pool: &Pool, device: usize, allowed: bool) {
        let mut peers = pool.peers();
        let of_pool = || self.memory.all_where(|a| a.kind == Kind::Pooled { pool: pool.id });
        if allowed && peers.insert(device) {
            of_pool().iter().for_each(|a| self.devices[device].map.insert(a.base, a.len));
        } else if !allowed && peers.remove(&device) {
            of_pool().iter().for_each(|a| {
                self.devices[device].map.remove(a.base);
            });
        }
    }
}
