//! The result of a call: what it gives, or a code of the driver API.

/// The error is the code that the program sees.
pub type Result<T> = std::result::Result<T, driverapi::types::CUresult>;
