//! Controls the access of devices to the session's memory on other devices.

use crate::driver::Result;
use crate::session::commands::Session;
use driverapi::constants::{CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
use driverapi::errors::CUDA_ERROR_INVALID_DEVICE;
use protocol::PeerAccess;

impl Session {
    /// Allows or ends a device's access to memory on `peer`, including memory that is mapped later. A slab that is
    /// being mapped becomes accessible when the mapping is complete.
    pub fn peer_access(&mut self, c: &PeerAccess) -> Result<()> {
        if c.device >= self.device_count || c.peer >= self.device_count || c.device == c.peer {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let device = self.driver.device(c.device as i32)?;
        let flags = if c.allowed { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE };
        for (address, slab) in self.memory.slabs.iter().filter(|(_, slab)| slab.device == c.peer && slab.memory != 0) {
            self.driver.memory_set_access(*address, slab.size, device, flags)?;
            self.show_bounds(*address)?;
        }
        if c.allowed {
            self.memory.peers.insert((c.device, c.peer));
        } else {
            self.memory.peers.remove(&(c.device, c.peer));
        }
        Ok(())
    }

    /// Makes this slab accessible to the devices that may access its device, within the bounds of its pieces.
    pub fn show_to_peers(&self, address: u64) -> Result<()> {
        let Some(slab) = self.memory.slabs.get(&address) else { return Ok(()) };
        for (device, _) in self.memory.peers.iter().filter(|(_, peer)| *peer == slab.device) {
            self.driver.memory_allow(address, slab.size, self.driver.device(*device as i32)?)?;
        }
        self.show_bounds(address)
    }
}
