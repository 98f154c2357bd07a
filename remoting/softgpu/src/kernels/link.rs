//! The linker (`cuLink*`). It joins PTX units, and the result is PTX that the module loader accepts.

use crate::engine::{CompileError, Program};
use crate::kernels::jit::JitOptions;
use crate::kernels::source::UNIT_SEPARATOR;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::{Mutex, OnceLock};

pub struct Link {
    /// The log buffers that the program passed at creation. Later calls fill them.
    pub options: JitOptions,
    pub units: Mutex<Vec<String>>,
    /// The linked image with a NUL at its end. It stays valid as long as the link.
    image: OnceLock<Vec<u8>>,
}

impl Link {
    pub fn new(options: JitOptions) -> Link {
        Link { options, units: Mutex::default(), image: OnceLock::new() }
    }

    /// Checks that the units fit together, and joins them. Returns the image without the NUL.
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
