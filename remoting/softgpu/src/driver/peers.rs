//! Devices that reach the memory of others: what contexts enabled, and what the program allowed for pools.

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

    /// Forgets a context that ends: it reaches no other one, and no other one reaches it.
    pub fn forget_peers(&self, context: usize) {
        // Most contexts have no peers.
        let _ = self.memory.remove_peers(|peer| [peer.context, peer.other].contains(&context));
    }

    /// Whether a device can reach another one's memory: all devices are memory of one machine, but no device is its own
    /// peer.
    pub fn can_access(&self, device: usize, other: usize) -> bool {
        device != other
    }

    /// Lets a device reach a pool's memory, or no longer.
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
