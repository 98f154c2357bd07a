//! The result type of calls: a value, or an error code of the driver API.

/// A result whose error is the code that the program receives.
pub type Result<T> = std::result::Result<T, driverapi::types::CUresult>;
