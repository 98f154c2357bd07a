//! The process that this library is in, which is somebody else's: its life and its forks, system calls, the lines that it is
//! told on standard error, and the statistics that it leaves.
//!
//! Called by everything. It knows nothing of CUDA.

pub mod log;
pub mod process;
pub mod stats;
pub mod sys;
