//! The option lists of the functions that compile: whether the program wants a log, and where.

use crate::engine::registers_for;
use crate::ffi::{In, Out, R};
use driverapi::attributes::*;
use std::ffi::c_char;
use std::ptr;

/// Log buffers that the program offered.
#[derive(Default)]
pub struct JitOptions {
    error: LogBuffer,
    info: LogBuffer,
    /// The most registers of a thread, where the program bounds them.
    pub max_registers: Option<u32>,
}

/// Addresses of a buffer, of its size, and of the slot that takes the number of bytes written.
#[derive(Default)]
struct LogBuffer {
    address: usize,
    size: usize,
    written: usize,
}

impl JitOptions {
    /// `values` holds numbers cast to pointers, and takes some answers.
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
                // Numbers are 32 bits wide in a slot for a pointer.
                CU_JIT_MAX_REGISTERS => found.bound(value as u32),
                CU_JIT_THREADS_PER_BLOCK => found.bound(registers_for(value as u32, 1)),
                _ => (),
            }
        }
        Ok(found)
    }

    /// Bounds the registers of a thread; 0 bounds nothing, as with compilers.
    fn bound(&mut self, registers: u32) {
        let before = self.max_registers.unwrap_or(u32::MAX);
        self.max_registers = Some(before.min(registers)).filter(|_| registers > 0).or(self.max_registers);
    }

    /// Writes the error log; returns whether the program asked for it.
    pub fn write_error(&self, text: &str) -> bool {
        self.error.write(text)
    }

    /// Empties the logs of a compilation that went well.
    pub fn write_nothing(&self) {
        self.error.write("");
        self.info.write("");
    }
}

impl LogBuffer {
    fn write(&self, text: &str) -> bool {
        // The size in the option list is meant to have 32 bits; a wild pointer-sized value would mean nothing.
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
