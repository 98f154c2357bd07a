//! The type of an error.

/// A `CUresult` other than success.
pub type Code = driverapi::types::CUresult;
