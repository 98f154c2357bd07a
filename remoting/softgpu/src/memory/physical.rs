//! Physical memory that programs map themselves.

use crate::memory::backing::Backing;
use driverapi::constants::CU_MEM_LOCATION_TYPE_DEVICE;
use driverapi::types::CUmemLocation;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Memory made by `cuMemCreate`. It lives until it is released and mapped nowhere.
pub struct Physical {
    pub id: usize,
    pub device: usize,
    pub len: u64,
    /// Whether other processes may have it.
    pub shareable: bool,
    /// The location that the program requested.
    pub location: CUmemLocation,
    /// Another process made it, and is charged for it.
    pub imported: bool,
    pub backing: Backing,
    pub references: AtomicUsize,
    pub released: AtomicBool,
}

impl Physical {
    /// Whether it is memory of the host. No device is charged for that.
    pub fn is_host(&self) -> bool {
        self.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
    }
}
