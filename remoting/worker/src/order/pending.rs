//! Objects that are created in several steps and wait for the GPU or the appliance between them.

use protocol::KernelInfo;

/// A slab that is not yet mapped for its tenant.
#[derive(Debug, Clone, Copy)]
pub struct NewSlab {
    pub context: u64,
    pub address: u64,
    pub size: u64,
    /// The hidden address at which the slab is zeroed.
    pub place: u64,
    pub memory: u64,
    /// The driver's handle of the device.
    pub device: i32,
}

/// A kernel that was loaded, and the command that requested its description.
#[derive(Debug)]
pub struct Described {
    pub seq: u64,
    pub module: u64,
    /// The index of the kernel in the module's list.
    pub index: usize,
    pub info: KernelInfo,
}
