//! `cuLink*`: collects PTX; the result is PTX again, which the module loader takes.

use crate::engine::{CompileError, Program};
use crate::kernels::jit::JitOptions;
use crate::kernels::source::UNIT_SEPARATOR;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::{Mutex, OnceLock};

pub struct Link {
    /// The log buffers given at creation, filled by later calls.
    pub options: JitOptions,
    pub units: Mutex<Vec<String>>,
    /// The image and the NUL behind it; it lives as long as the link.
    image: OnceLock<Vec<u8>>,
}

impl Link {
    pub fn new(options: JitOptions) -> Link {
        Link { options, units: Mutex::default(), image: OnceLock::new() }
    }

    /// Checks that the units fit together and joins them. Returns the image without the NUL behind it.
    pub fn complete(&self) -> Result<&[u8], CompileError> {
        let units = self.units.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if units.is_empty() {
            let log = "nothing was added to the link".to_owned();
            return Err(CompileError { code: CUDA_ERROR_INVALID_VALUE, log });
        }
        let parts: Vec<&str> = units.iter().map(String::as_str).collect();
        Program::compile(&parts)?;
        let image = self.image.get_or_init(|| {
            let mut bytes = parts.join(UNIT_SEPARATOR).into_bytes();
            bytes.push(0);
            bytes
        });
        Ok(&image[..image.len() - 1])
    }
}
