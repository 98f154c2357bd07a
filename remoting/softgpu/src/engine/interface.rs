//! The public description of a program: its kernels and variables, or the reason why it was refused.

use std::fmt;

/// The reason why PTX was refused: a `CUresult`, and the text for the JIT error log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    pub code: u32,
    pub log: String,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA error {}: {}", self.code, self.log)
    }
}

impl std::error::Error for CompileError {}

/// A kernel parameter: its offset and size in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

/// The properties of an entry function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    /// The architecture for which the kernel was compiled, such as 80 for sm_80.
    pub architecture: u32,
    pub params: Vec<Param>,
    pub param_bytes: u32,
    pub static_shared: u32,
    pub local_bytes: u32,
    pub registers: u32,
    /// The product of `.maxntid`, or 1024 without that directive.
    pub max_threads: u32,
    pub reqntid: Option<[u32; 3]>,
    pub required_cluster: Option<[u32; 3]>,
    /// The maximum number of blocks in a cluster, if the kernel states it.
    pub max_cluster: Option<u32>,
    /// Whether the kernel runs correctly without clusters. It was compiled for GPUs with clusters, but does not read
    /// its position in a cluster or wait for the cluster's other blocks.
    pub ignores_clusters: bool,
    /// The first PTX form in the kernel that the engine does not support. A launch of this kernel must fail with error
    /// 218 and this text.
    pub unsupported: Option<String>,
}

impl Kernel {
    /// Returns a kernel that needs no resources of the device except threads.
    pub fn of_nothing() -> Kernel {
        Kernel {
            name: String::new(),
            architecture: 0,
            params: Vec::new(),
            param_bytes: 0,
            static_shared: 0,
            local_bytes: 0,
            registers: 0,
            max_threads: 1024,
            reqntid: None,
            required_cluster: None,
            max_cluster: None,
            ignores_clusters: false,
            unsupported: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Global,
    Const,
}

/// The properties of a module-scope variable, with its size in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub size: u64,
    pub align: u64,
    pub space: Space,
    /// Whether `cuModuleGetGlobal` can find the variable.
    pub visible: bool,
    /// Whether the host can use the variable too.
    pub managed: bool,
}
