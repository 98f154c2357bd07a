//! The access of devices to the memory of other devices, which contexts enable.

use crate::ffi::R;
use crate::memory::allocations::{Allocation, Kind, Memory};
use driverapi::errors::*;
use std::sync::{PoisonError, RwLockWriteGuard};

/// The access of one context to the memory of another context's device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub context: usize,
    pub other: usize,
    pub device: usize,
    pub other_device: usize,
}

impl Peer {
    pub fn reaches(&self, allocation: &Allocation) -> bool {
        allocation.device == self.other_device && matches!(allocation.kind, Kind::Device | Kind::Globals)
    }
}

impl Memory {
    fn write_peers(&self) -> RwLockWriteGuard<'_, Vec<Peer>> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an allocation accessible to each peer of its device.
    pub fn show_to_peers(&self, peers: &[Peer], allocation: &Allocation) {
        for peer in peers.iter().filter(|peer| peer.reaches(allocation)) {
            self.devices[peer.device].map.insert(allocation.base, allocation.len);
        }
    }

    pub fn add_peer(&self, peer: Peer) -> R {
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

    /// Removes the peers that `gone` selects. A device loses the access to memory if no other context of the device has
    /// access.
    pub fn remove_peers(&self, gone: impl Fn(&Peer) -> bool) -> R {
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
