//! The process that this library is in, which is somebody else's: its life and its forks, system calls, the lines that it is
//! told on standard error, and the statistics that it leaves.
//!
//! Called by everything. It knows nothing of CUDA.

pub(crate) mod log;
pub(crate) mod process;
pub mod stats;
pub(crate) mod sys;
