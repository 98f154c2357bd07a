//! The process that loaded this library: its life and its forks, system calls, the log lines on standard error, and the
//! statistics that it leaves.
//!
//! Called by all other modules. It knows nothing of CUDA.

pub mod descriptors;
pub(crate) mod identity;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod report;
pub mod stats;
pub(crate) mod sys;
