//! A program from outside: its kernels and variables, or why it was refused.

use std::fmt;

/// Why PTX was refused: a `CUresult` and the text for the JIT error log.
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

/// One kernel parameter in the parameter buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

/// An entry function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    /// The architecture that it was compiled for: 80 for sm_80.
    pub architecture: u32,
    pub params: Vec<Param>,
    pub param_bytes: u32,
    pub static_shared: u32,
    pub local_bytes: u32,
    pub registers: u32,
    /// The product of `.maxntid`, or 1024.
    pub max_threads: u32,
    pub reqntid: Option<[u32; 3]>,
    pub required_cluster: Option<[u32; 3]>,
    /// The most blocks of a cluster, where the kernel says it.
    pub max_cluster: Option<u32>,
    /// Whether it does the same in clusters as without: it was compiled for GPUs that have them, and neither asks for its
    /// place in one nor waits for the others there.
    pub ignores_clusters: bool,
    /// The first PTX form in it that the engine does not execute; such a kernel must be refused with 218 and this text.
    pub unsupported: Option<String>,
}

impl Kernel {
    /// A kernel that takes nothing of the device but its threads.
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

/// A module-scope variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub size: u64,
    pub align: u64,
    pub space: Space,
    /// Whether `cuModuleGetGlobal` may find it.
    pub visible: bool,
    /// Whether the host uses it, too.
    pub managed: bool,
}
