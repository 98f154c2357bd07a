//! Which devices reach the memory that the process has on others of the same appliance. One that reaches some of it
//! reaches all: the worker knows devices, not who asked for what.

use crate::Code;
use crate::devices::Device;
use crate::session::{Session, lock};
use driverapi::attributes::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
use driverapi::errors::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED};
use protocol::PeerAccess;
use std::sync::Arc;

/// A reason why a device reaches another one's memory: a context's, a pool's, a mapping's or an import's.
pub struct Access {
    session: Arc<Session>,
    device: &'static Device,
    peer: &'static Device,
}

/// An attribute of two devices, 0 if they cannot reach each other.
pub fn attribute(device: &Device, peer: &Device, attribute: u32) -> i32 {
    let together = Arc::ptr_eq(&device.appliance, &peer.appliance);
    if together { device.info.peer_attribute(peer.index, attribute) } else { 0 }
}

pub fn is_possible(device: &Device, peer: &Device) -> bool {
    attribute(device, peer, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) != 0
}

impl Access {
    /// # Errors
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`, or why there is no session.
    pub fn new(device: &'static Device, peer: &'static Device) -> Result<Access, Code> {
        if !is_possible(device, peer) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let session = device.session()?;
        let mut reached = lock(&session.reached);
        let reasons = reached.entry((device.index, peer.index)).or_insert(0);
        if *reasons == 0 {
            session.post(0, &PeerAccess { device: device.index, peer: peer.index, allowed: true })?;
        }
        *reasons += 1;
        drop(reached);
        Ok(Access { session, device, peer })
    }

    /// The program takes it back; the memory is out of reach if this was the only reason.
    ///
    /// # Errors
    /// The code of work that failed.
    pub fn end(self) -> Result<(), Code> {
        if let Ok(live) = self.device.primary.live() {
            live.synchronise()?;
        }
        let reached = lock(&self.session.reached);
        let (device, peer) = self.pair();
        match reached.get(&(device, peer)) {
            Some(1) => self.session.post(0, &PeerAccess { device, peer, allowed: false }).map(drop),
            _ => Ok(()),
        }
    }

    fn pair(&self) -> (u32, u32) {
        (self.device.index, self.peer.index)
    }
}

impl Drop for Access {
    /// What ends with a context is not taken from kernels that still run.
    fn drop(&mut self) {
        if let Some(reasons) = lock(&self.session.reached).get_mut(&self.pair()) {
            *reasons -= 1;
        }
    }
}

/// The code of functions that name devices, where those that name contexts have one of their own.
pub fn unreachable_device(code: Code) -> Code {
    if code == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED { CUDA_ERROR_INVALID_DEVICE } else { code }
}
