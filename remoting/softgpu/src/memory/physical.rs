//! Physical memory that programs map at addresses of their choice.

use crate::memory::backing::Backing;
use driverapi::constants::CU_MEM_LOCATION_TYPE_DEVICE;
use driverapi::types::CUmemLocation;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Memory that `cuMemCreate` created. It is freed when the program has released it and nothing maps it.
pub struct Physical {
    pub id: usize,
    pub device: usize,
    pub len: u64,
    /// Whether other processes may import the memory.
    pub shareable: bool,
    /// The location that the program requested.
    pub location: CUmemLocation,
    /// Whether another process created the memory. That process is then charged.
    pub imported: bool,
    pub backing: Backing,
    pub references: AtomicUsize,
    pub released: AtomicBool,
}

impl Physical {
    /// Whether this is host memory, for which no device is charged.
    pub fn is_host(&self) -> bool {
        self.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
    }
}
