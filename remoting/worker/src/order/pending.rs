//! Objects that are made in several steps, with an answer of the GPU or the appliance in between.

use protocol::KernelInfo;

/// A slab that its tenant does not have yet.
#[derive(Debug, Clone, Copy)]
pub struct NewSlab {
    pub context: u64,
    pub address: u64,
    pub size: u64,
    /// The hidden address where it is zeroed.
    pub place: u64,
    pub memory: u64,
    /// The driver's handle of the device.
    pub device: i32,
}

/// A kernel that was loaded, and the command that asked for it.
#[derive(Debug)]
pub struct Described {
    pub seq: u64,
    pub module: u64,
    /// Its index in the module's list.
    pub index: usize,
    pub info: KernelInfo,
}
