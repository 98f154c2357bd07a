//! The devices as NVML shows them, and how this process uses them.

use crate::driver;
use crate::process::config::{PciId, uuid_text};
use crate::process::model::Model;
use driverapi::nvml::nvmlDevice_t;
use driverapi::types::CUuuid;
use std::ptr;

/// The base of device handles. A handle is this number plus 16 times the index, and not an address.
const HANDLES: usize = 0x6e76_0000_0000;

pub struct Card {
    pub model: &'static Model,
    pub index: usize,
    pub uuid: CUuuid,
    pub pci: PciId,
    pub memory: u64,
}

pub fn cards() -> Vec<Card> {
    let config = driver::config();
    let (uuids, pci) = (config.uuids.iter(), config.pci.iter());
    uuids
        .zip(pci)
        .enumerate()
        .map(|(index, (&uuid, &pci))| Card { model: config.profile.model, index, uuid, pci, memory: config.memory })
        .collect()
}

impl Card {
    pub fn handle(&self) -> nvmlDevice_t {
        ptr::without_provenance_mut(HANDLES + self.index * 16)
    }

    pub fn uuid(&self) -> String {
        uuid_text(&self.uuid)
    }

    pub fn bus_id(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.pci.domain, self.pci.bus, self.pci.device)
    }

    /// Returns the bytes that this process uses on the device. The memory of other processes is not visible.
    pub fn used(&self) -> u64 {
        self.device().map_or(0, |device| device.memory - device.free_bytes())
    }

    /// Whether this process has a context on the device.
    pub fn in_use(&self) -> bool {
        let Ok(driver) = driver::driver() else { return false };
        driver.contexts.all().iter().any(|context| context.device.uuid == self.uuid)
    }

    fn device(&self) -> Option<&'static crate::process::device::Device> {
        let driver = driver::driver().ok()?;
        driver.devices.iter().find(|device| device.uuid == self.uuid).map(AsRef::as_ref)
    }

    /// Whether a kernel of this process is running on the device.
    pub fn is_busy(&self) -> bool {
        self.device().is_some_and(|device| device.running.load(std::sync::atomic::Ordering::Relaxed) > 0)
    }
}
