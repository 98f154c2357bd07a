//! The GPU model that a device reports: the sizes for which programs plan their kernels, and whether kernels run.

/// The properties of a GPU model. There are two models, and a profile names one of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    pub name: &'static str,
    pub capability: (i32, i32),
    /// The compute capability that NVIDIA's own libraries see.
    pub library_capability: (i32, i32),
    /// Whether this is a null GPU. It accepts machine code too, and runs no kernel.
    pub null: bool,
    /// The bytes of device memory, unless the settings contain another number.
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
    /// The maximum number of blocks in a cluster for each kernel. 1 means that clusters are not supported.
    pub portable_cluster: u32,
    /// The maximum number of blocks in a cluster for a kernel that allows non-portable sizes.
    pub largest_cluster: u32,
    /// The number of the architecture in NVML.
    pub nvml_architecture: u32,
}

impl Model {
    /// The software GPU. It has the sizes of compute capability 8.0. It has few multiprocessors, because programs often
    /// use a grid as large as that number. Libraries see a capability that is newer than all their machine code, so
    /// they use PTX.
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

    /// An H100 SXM5 80 GB that computes nothing. The sizes of compute capability 9.0 are from the table "Technical
    /// Specifications per Compute Capability" in the CUDA C++ Programming Guide. The other values are from NVIDIA's
    /// H100 data sheet and the output of CUDA's sample deviceQuery. A cluster has at most 8 blocks, or 16 if the kernel
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

    /// Returns the compute capability as one number, such as 90 for 9.0.
    pub fn architecture(&self) -> u32 {
        (self.capability.0 * 10 + self.capability.1).unsigned_abs()
    }
}

/// The maximum number of threads in a block. This size and those below are the same for all models.
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
/// The PCI device id. The low half 10DE is NVIDIA's vendor id, and the high half is 0, which is not a product.
pub const PCI_DEVICE_ID: u32 = 0x0000_10de;
