//! What is made in several steps, between which the GPU or the appliance has to answer.

use protocol::KernelInfo;

/// A slab on its way to its tenant.
#[derive(Debug, Clone, Copy)]
pub struct NewSlab {
    pub context: u64,
    pub address: u64,
    pub size: u64,
    /// Where it is zeroed.
    pub place: u64,
    pub memory: u64,
    /// The driver's name of the device.
    pub device: i32,
}

/// A kernel that was loaded, and the command that asked for it.
#[derive(Debug)]
pub struct Described {
    pub seq: u64,
    pub module: u64,
    /// In the module's list.
    pub index: usize,
    pub info: KernelInfo,
}
