//! The process that loaded this library: its end and its forks, system calls, log lines on standard error, and
//! statistics.
//!
//! All other modules call these modules, which do not use CUDA.

pub mod descriptors;
pub(crate) mod identity;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod report;
pub mod stats;
pub(crate) mod sys;
