//! Devices that reach the memory of others: what contexts enabled, and what the program allowed for pools.

use crate::ffi::R;
use crate::memory::allocations::{Allocation, Kind, Memory};
use crate::memory::pool::Pool;
use crate::process::context::Context;
use crate::process::driver::Driver;
use driverapi::errors::*;
use std::sync::{PoisonError, RwLockWriteGuard};

/// A context that reaches what another one's device has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    context: usize,
    other: usize,
    device: usize,
    pub other_device: usize,
}

impl Peer {
    fn between(context: &Context, other: &Context) -> Peer {
        let (device, other_device) = (context.device.ordinal, other.device.ordinal);
        Peer { context: context.id, other: other.id, device, other_device }
    }

    pub fn reaches(&self, allocation: &Allocation) -> bool {
        allocation.device == self.other_device && matches!(allocation.kind, Kind::Device | Kind::Globals)
    }
}

impl Memory {
    fn write_peers(&self) -> RwLockWriteGuard<'_, Vec<Peer>> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes memory that a device may touch valid there.
    pub fn show_to_peers(&self, peers: &[Peer], allocation: &Allocation) {
        for peer in peers.iter().filter(|peer| peer.reaches(allocation)) {
            self.devices[peer.device].map.insert(allocation.base, allocation.len);
        }
    }

    fn add_peer(&self, peer: Peer) -> R {
        let mut peers = self.write_peers();
        if peers.contains(&peer) {
            return Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        for allocation in self.all_where(|a| peer.reaches(a)) {
            self.show_to_peers(&[peer], &allocation);
        }
        Ok(())
    }

    /// Removes the peers that `gone` selects; memory that no other context of the device reaches is invalid there from
    /// now on.
    fn remove_peers(&self, gone: impl Fn(&Peer) -> bool) -> R {
        let mut peers = self.write_peers();
        let (ended, left): (Vec<_>, Vec<_>) = peers.iter().copied().partition(gone);
        for peer in &ended {
            if !left.iter().any(|l| (l.device, l.other_device) == (peer.device, peer.other_device)) {
                for allocation in self.all_where(|a| peer.reaches(a)) {
                    self.devices[peer.device].map.remove(allocation.base);
                }
            }
        }
        *peers = left;
        if ended.is_empty() { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) } else { Ok(()) }
    }
}

impl Driver {
    pub fn enable_peer(&self, context: &Context, other: &Context) -> R {
        if context.id == other.id {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if !self.can_access(context.device.ordinal, other.device.ordinal) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        self.memory.add_peer(Peer::between(context, other))
    }

    pub fn disable_peer(&self, context: &Context, other: &Context) -> R {
        let peer = Peer::between(context, other);
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
