//! The GPU that a device shows itself to be: the sizes that programs plan their kernels with, and what happens to
//! kernels.

/// Facts about a GPU. One of the constants below; a profile names it.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    pub name: &'static str,
    pub capability: (i32, i32),
    /// The capability that NVIDIA's own libraries see.
    pub library_capability: (i32, i32),
    /// Whether kernels are taken as machine code too, and none is ever run.
    pub null: bool,
    /// Bytes of a device unless the settings say otherwise.
    pub memory: u64,
    pub multiprocessors: u32,
    pub shared_per_block_optin: u32,
    pub shared_per_multiprocessor: u32,
    pub l2_bytes: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub async_engines: u32,
    pub mem_sync_domains: u32,
    /// The most blocks of a cluster that every such GPU takes; 1: there are no clusters.
    pub portable_cluster: u32,
    /// The most for a kernel that allows sizes that not every such GPU takes.
    pub largest_cluster: u32,
    /// NVML's number for the architecture.
    pub nvml_architecture: u32,
}

impl Model {
    /// The software GPU: the sizes of compute capability 8.0, with few multiprocessors because grids are often made as
    /// large as their number. Libraries see a capability above all their machine code, so that they take PTX.
    pub const SOFTWARE: Model = Model {
        name: "remotegpu software GPU",
        capability: (8, 0),
        library_capability: (13, 0),
        null: false,
        memory: 8 << 30,
        multiprocessors: 16,
        shared_per_block_optin: 163 << 10,
        shared_per_multiprocessor: 164 << 10,
        l2_bytes: 32 << 20,
        clock_khz: 1_000_000,
        memory_clock_khz: 1_000_000,
        memory_bus_bits: 256,
        async_engines: 2,
        mem_sync_domains: 1,
        portable_cluster: 1,
        largest_cluster: 1,
        nvml_architecture: 7,
    };

    /// An H100 SXM5 80 GB that computes nothing. The sizes of compute capability 9.0 are those of the CUDA C++
    /// Programming Guide's table "Technical Specifications per Compute Capability"; the rest is of NVIDIA's H100 data
    /// sheet and of what CUDA's sample deviceQuery prints for it. A cluster has at most 8 blocks, 16 where the kernel
    /// allows non-portable sizes (Programming Guide, "Thread Block Clusters").
    pub const NULL_H100: Model = Model {
        name: "NVIDIA H100 80GB HBM3 (null GPU)",
        capability: (9, 0),
        library_capability: (9, 0),
        null: true,
        memory: 80 << 30,
        multiprocessors: 132,
        shared_per_block_optin: 227 << 10,
        shared_per_multiprocessor: 228 << 10,
        l2_bytes: 50 << 20,
        clock_khz: 1_980_000,
        memory_clock_khz: 2_619_000,
        memory_bus_bits: 5120,
        async_engines: 3,
        mem_sync_domains: 4,
        portable_cluster: 8,
        largest_cluster: 16,
        nvml_architecture: 9,
    };

    /// 90 for 9.0.
    pub fn architecture(&self) -> u32 {
        (self.capability.0 * 10 + self.capability.1).unsigned_abs()
    }
}

/// Sizes that all models share.
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
pub const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 2048;
pub const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
pub const SHARED_RESERVED_PER_BLOCK: u32 = 1 << 10;
pub const REGISTERS: u32 = 65536;
pub const CONSTANT_BYTES: u32 = 64 << 10;
pub const WARP: u32 = 32;
pub const TEXTURE_ALIGNMENT: u32 = 512;
pub const PITCH_ALIGNMENT: u64 = 512;
/// "10DE" is the vendor every CUDA device has; the device number is of no product.
pub const PCI_DEVICE_ID: u32 = 0x0000_10de;
