//! The error type of the client.

/// A `CUresult` other than success.
pub type Code = driverapi::types::CUresult;
