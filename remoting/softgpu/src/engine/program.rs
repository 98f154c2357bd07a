//! What a program looks like from outside: kernels, globals, and an image of it in device memory.

use std::fmt;
use std::sync::Arc;

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
    pub params: Vec<Param>,
    pub param_bytes: u32,
    pub static_shared: u32,
    pub local_bytes: u32,
    pub registers: u32,
    /// The product of `.maxntid`, or 1024.
    pub max_threads: u32,
    pub reqntid: Option<[u32; 3]>,
    /// The first PTX form in it that the engine does not execute; such a kernel must be refused with 218 and this text.
    pub unsupported: Option<String>,
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
}

/// Several PTX units linked into one; immutable.
pub struct Program {
    kernels: Vec<Kernel>,
    globals: Vec<Global>,
    target: u32,
    ptx_version: u32,
}

impl Program {
    /// Parses, links and decodes `units`.
    pub fn compile(_units: &[&str]) -> Result<Program, CompileError> {
        Err(CompileError { code: 218, log: "the PTX engine is not built in yet".to_owned() })
    }

    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// The `.target`, 80 for sm_80.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// The `.version`, 84 for 8.4.
    pub fn ptx_version(&self) -> u32 {
        self.ptx_version
    }
}

/// A program whose globals have device addresses.
pub struct Image {
    program: Arc<Program>,
    addresses: Vec<u64>,
}

impl Image {
    /// `addresses` holds one address per entry of `program.globals()`.
    pub fn new(program: Arc<Program>, addresses: Vec<u64>) -> Image {
        Image { program, addresses }
    }

    /// The initial contents of a global: relocated and zero-filled.
    pub fn initial_bytes(&self, global: usize) -> Vec<u8> {
        let _ = &self.addresses;
        vec![0; self.program.globals[global].size as usize]
    }

    pub fn program(&self) -> &Program {
        &self.program
    }
}
