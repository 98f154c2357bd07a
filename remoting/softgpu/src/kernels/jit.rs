//! The option lists of the functions that compile: log buffers and the maximum number of registers.

use crate::engine::registers_for;
use crate::ffi::{In, Out, R};
use driverapi::attributes::*;
use std::ffi::c_char;
use std::ptr;

/// The options that a program passed to a compilation: log buffers and the register limit.
#[derive(Default)]
pub struct JitOptions {
    error: LogBuffer,
    info: LogBuffer,
    /// The maximum number of registers for each thread, if the program set one.
    pub max_registers: Option<u32>,
}

/// The address and size of a log buffer, and the address of the slot that receives the number of bytes written.
#[derive(Default)]
struct LogBuffer {
    address: usize,
    size: usize,
    written: usize,
}

impl JitOptions {
    /// Reads `count` options. `values` contains numbers cast to pointers, and some of its slots receive results.
    pub fn read(count: u32, options: In<CUjit_option>, values: Out<usize>) -> R<JitOptions> {
        let mut found = JitOptions::default();
        if count == 0 {
            return Ok(found);
        }
        let values = values.required()?;
        let names = options.list(count as usize)?;
        let given = In::at(values.address()).list(count as usize)?;
        for (i, (&name, &value)) in names.iter().zip(&given).enumerate() {
            let slot = values.address().wrapping_add(i) as usize;
            match name {
                CU_JIT_ERROR_LOG_BUFFER => found.error.address = value,
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => (found.error.size, found.error.written) = (value, slot),
                CU_JIT_INFO_LOG_BUFFER => found.info.address = value,
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => (found.info.size, found.info.written) = (value, slot),
                // A number in a pointer-sized slot is 32 bits wide.
                CU_JIT_MAX_REGISTERS => found.bound(value as u32),
                CU_JIT_THREADS_PER_BLOCK => found.bound(registers_for(value as u32, 1)),
                _ => (),
            }
        }
        Ok(found)
    }

    /// Sets the maximum number of registers for each thread. As in compilers, 0 means no limit.
    fn bound(&mut self, registers: u32) {
        let before = self.max_registers.unwrap_or(u32::MAX);
        self.max_registers = Some(before.min(registers)).filter(|_| registers > 0).or(self.max_registers);
    }

    /// Writes text to the error log. Returns whether the program passed an error log.
    pub fn write_error(&self, text: &str) -> bool {
        self.error.write(text)
    }

    /// Writes empty logs, for a compilation without errors.
    pub fn write_nothing(&self) {
        self.error.write("");
        self.info.write("");
    }
}

impl LogBuffer {
    fn write(&self, text: &str) -> bool {
        // The size in the option list has 32 bits. The upper half of the slot may contain garbage.
        let size = self.size as u32 as usize;
        let buffer: Out<c_char> = Out::at(ptr::with_exposed_provenance_mut(self.address));
        let wanted = buffer.set_text(text, size).is_ok();
        if wanted {
            let slot: Out<usize> = Out::at(ptr::with_exposed_provenance_mut(self.written));
            slot.set_if_wanted(text.len().min(size - 1));
        }
        wanted
    }
}
