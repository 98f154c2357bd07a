//! Handles and error codes of a driver.

use super::Raw;
use driverapi::errors::*;

/// A `CUresult` other than success.
pub type Code = u32;
pub type Result<T> = std::result::Result<T, Code>;

/// Whether the device caused the error, and not the program.
pub fn is_unhealthy(code: Code) -> bool {
    matches!(
        code,
        CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
    )
}

/// A context, stream, event, module, function or page-locked memory of the driver; 0 is NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Handle(pub usize);

impl Handle {
    pub const NULL: Handle = Handle(0);

    pub fn raw(self) -> Raw {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

impl From<Raw> for Handle {
    fn from(raw: Raw) -> Handle {
        Handle(raw.expose_provenance())
    }
}
