//! The driver's handles and error codes.

use super::Raw;
use driverapi::errors::*;

/// A `CUresult` other than success.
pub type Code = u32;
pub type Result<T> = std::result::Result<T, Code>;

/// Whether the error means that the device is faulty, and not the program.
pub fn is_unhealthy(code: Code) -> bool {
    matches!(
        code,
        CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
    )
}

/// A driver handle of a context, stream, event, module or function, or the address of page-locked memory. 0 is NULL.
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
