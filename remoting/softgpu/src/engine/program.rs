//! A program, and an image of a program in device memory.

use std::sync::Arc;

use super::code::{Code, Target, function_address};
use super::compile::{Linked, compile};
use super::describe::describe;
use super::exec::{Slot, spread};
use super::heap::Heap;
use super::interface::{CompileError, Global, Kernel};
use driverapi::cubin::Cubin;

/// An immutable program, linked from one or more PTX units.
pub struct Program {
    linked: Linked,
}

impl Program {
    /// Parses, links and decodes `units`.
    pub fn compile(units: &[&str]) -> Result<Program, CompileError> {
        Ok(Program { linked: compile(units)? })
    }

    /// Creates a program from the descriptions in machine code. Its kernels must not be launched, because they have no
    /// code.
    pub fn describe(cubins: &[Cubin]) -> Program {
        Program { linked: describe(cubins) }
    }

    /// Returns the program for a null GPU, which does not run kernels. Unsupported PTX in a kernel is then no reason to
    /// refuse the kernel.
    pub fn never_run(mut self) -> Program {
        self.linked.kernels.iter_mut().for_each(|kernel| kernel.unsupported = None);
        self
    }

    pub fn kernels(&self) -> &[Kernel] {
        &self.linked.kernels
    }

    pub fn globals(&self) -> &[Global] {
        &self.linked.globals
    }

    /// Whether the program calls `malloc`.
    pub fn uses_heap(&self) -> bool {
        self.linked.code.heap
    }

    pub(crate) fn code(&self) -> &Code {
        &self.linked.code
    }

    /// Returns the function index of a kernel.
    pub(crate) fn kernel_function(&self, kernel: usize) -> u32 {
        self.linked.entries[kernel]
    }
}

/// A program whose global variables have device addresses.
pub struct Image {
    program: Arc<Program>,
    addresses: Vec<u64>,
    /// The program's constants, with addresses filled in.
    consts: Vec<Slot>,
    heap: Heap,
}

impl Image {
    /// Creates an image. `addresses` contains one address for each entry of `program.globals()`.
    pub fn new(program: Arc<Program>, addresses: Vec<u64>) -> Image {
        let pool = &program.linked.pool;
        let mut consts = pool.slots.clone();
        for relocation in &pool.relocations {
            let value = address_of(relocation.target, &addresses).wrapping_add(relocation.addend as u64);
            let slot = relocation.slot as usize;
            consts[slot..slot + 2].copy_from_slice(&spread(value, true));
        }
        Image { program, addresses, consts, heap: Heap::default() }
    }

    /// Returns the initial contents of a global variable: relocated, and filled with zeros to its size.
    pub fn initial_bytes(&self, global: usize) -> Vec<u8> {
        let linked = &self.program.linked;
        let contents = &linked.contents[global];
        let mut bytes = contents.bytes.clone();
        bytes.resize(linked.globals[global].size as usize, 0);
        for relocation in &contents.relocations {
            let value = address_of(relocation.target, &self.addresses).wrapping_add(relocation.addend as u64);
            let value = (value >> relocation.shift).to_le_bytes();
            let size = relocation.size.min(value.len());
            if let Some(place) = bytes.get_mut(relocation.offset..relocation.offset + size) {
                place.copy_from_slice(&value[..size]);
            }
        }
        bytes
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn consts(&self) -> &[Slot] {
        &self.consts
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }
}

fn address_of(target: Target, addresses: &[u64]) -> u64 {
    match target {
        Target::Global(index) => addresses.get(index as usize).copied().unwrap_or(0),
        Target::Function(index) => function_address(index),
    }
}
