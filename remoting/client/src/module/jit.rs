//! Options of the just-in-time compiler. Plain values are sent to the worker; log buffers are filled by the client.

use crate::Code;
use crate::boundary::{inputs, write_text};
use driverapi::attributes::*;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::ffi::{c_char, c_void};

/// A buffer in which the program wants a log, and the slot in which it expects the log's length.
#[derive(Default, Clone, Copy)]
struct LogBuffer {
    buffer: usize,
    size: usize,
    size_slot: usize,
}

#[derive(Default)]
pub struct JitOptions {
    pub values: Vec<(u32, u64)>,
    info: LogBuffer,
    error: LogBuffer,
}

/// Returns whether the option's value is a number that is stored in the slot itself.
fn is_plain(option: u32) -> bool {
    matches!(
        option,
        CU_JIT_MAX_REGISTERS
            | CU_JIT_THREADS_PER_BLOCK
            | CU_JIT_OPTIMIZATION_LEVEL
            | CU_JIT_TARGET_FROM_CUCONTEXT
            | CU_JIT_TARGET
            | CU_JIT_FALLBACK_STRATEGY
            | CU_JIT_GENERATE_DEBUG_INFO
            | CU_JIT_LOG_VERBOSE
            | CU_JIT_GENERATE_LINE_INFO
            | CU_JIT_CACHE_MODE
    )
}

impl JitOptions {
    /// Reads the options of the program.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for null lists.
    ///
    /// # Safety
    /// The lists are null or have `count` entries; slots stay writable until [`JitOptions::report`].
    pub unsafe fn read(count: u32, options: *const u32, values: *mut *mut c_void) -> Result<Self, Code> {
        // SAFETY: as the caller vouches.
        let (names, slots) = unsafe { (inputs(options, count as usize)?, inputs(values, count as usize)?) };
        let mut read = JitOptions::default();
        for (index, (name, slot)) in names.into_iter().zip(slots).enumerate() {
            let place = values.addr() + index * size_of::<*mut c_void>();
            match name {
                CU_JIT_INFO_LOG_BUFFER => read.info.buffer = slot.expose_provenance(),
                CU_JIT_ERROR_LOG_BUFFER => read.error.buffer = slot.expose_provenance(),
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => (read.info.size, read.info.size_slot) = (slot.addr(), place),
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => (read.error.size, read.error.size_slot) = (slot.addr(), place),
                name if is_plain(name) => read.values.push((name, slot.addr() as u64)),
                _ => {}
            }
        }
        if values.is_null() && count > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let _ = values.expose_provenance();
        Ok(read)
    }

    /// Returns the options without log buffers.
    pub fn without_logs(&self) -> Self {
        JitOptions { values: self.values.clone(), ..JitOptions::default() }
    }

    /// Copies the logs into the program's buffers.
    pub fn report(&self, info: &str, error: &str) {
        self.info.fill(info);
        self.error.fill(error);
    }
}

impl LogBuffer {
    fn fill(self, log: &str) {
        // The value of this option is an int in a slot that has the size of a pointer.
        let size = self.size as u32 as usize;
        let buffer = std::ptr::with_exposed_provenance_mut::<c_char>(self.buffer);
        // SAFETY: the program gave this buffer with this size, and the slot, for the logs of this call.
        unsafe {
            if write_text(buffer, size, log).is_ok() && self.size_slot != 0 {
                let written = log.len().min(size - 1);
                std::ptr::with_exposed_provenance_mut::<usize>(self.size_slot).write_unaligned(written);
            }
        }
    }
}
