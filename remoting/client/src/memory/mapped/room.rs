//! Device memory for mirrors. It is taken before the lock of the mirrors, and given back without this lock: both may
//! wait for work behind a host function, which takes the lock before it runs.

use crate::Code;
use crate::devices::Device;
use crate::devices::context::Live;
use crate::devices::memory::Origin;
use std::sync::Arc;

/// Device memory that no mirror uses. Declare it before the lock is taken: when it is dropped, it gives the memory back.
#[derive(Default)]
pub struct Room {
    /// Quota of devices for granules.
    quota: Vec<(Arc<Live>, u64)>,
    /// Allocations of devices.
    pieces: Vec<(&'static Device, u64)>,
}

impl Room {
    /// Takes quota for granules.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or the session's sticky error.
    pub fn take(&mut self, live: &Arc<Live>, bytes: u64) -> Result<(), Code> {
        if bytes > 0 {
            live.device.memory.take_quota(live, bytes)?;
            self.add(live, bytes);
        }
        Ok(())
    }

    /// Allocates memory of the device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or the session's sticky error.
    pub fn allocate(&mut self, live: &Arc<Live>, bytes: u64) -> Result<u64, Code> {
        let piece = live.device.memory.allocate(live, bytes, Origin::default())?;
        self.pieces.push((live.device, piece));
        Ok(piece)
    }

    /// Adds quota that granules no longer use.
    pub fn add(&mut self, live: &Arc<Live>, bytes: u64) {
        self.quota.push((Arc::clone(live), bytes));
    }

    /// Adds an allocation that no mirror uses any more.
    pub fn add_piece(&mut self, device: &'static Device, piece: u64) {
        self.pieces.push((device, piece));
    }

    /// Removes an allocation, because a mirror uses it from now on.
    pub fn use_piece(&mut self, piece: u64) {
        self.pieces.retain(|(_, known)| *known != piece);
    }

    /// Returns whether there is so much quota of the device.
    pub fn has(&self, device: &Device, bytes: u64) -> bool {
        let of_device = self.quota.iter().filter(|(live, _)| std::ptr::eq(live.device, device));
        of_device.map(|(_, bytes)| bytes).sum::<u64>() >= bytes
    }

    /// Uses quota of the device. The caller has checked that there is enough ([`Room::has`]).
    pub fn use_quota(&mut self, device: &Device, mut bytes: u64) {
        for (_, left) in self.quota.iter_mut().filter(|(live, _)| std::ptr::eq(live.device, device)) {
            let used = bytes.min(*left);
            (*left, bytes) = (*left - used, bytes - used);
        }
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// The session's sticky error. Everything is given back even then.
    pub fn give_back(&mut self) -> Result<(), Code> {
        let mut all = Ok(());
        for (live, bytes) in self.quota.drain(..).filter(|(_, bytes)| *bytes > 0) {
            all = all.and(live.device.memory.put_back_quota(&live, bytes));
        }
        for (device, piece) in self.pieces.drain(..) {
            all = all.and(device.memory.free(piece, None));
        }
        all
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Each later call returns the session's error.
        let _ = self.give_back();
    }
}
