//! Code and its launches: from an image in memory to a kernel that runs.
//!
//! `source` finds the PTX in an image, `code` has the modules, libraries and functions made of it, `link` and `jit` are
//! the linker and its options. `launch` checks a launch and runs it by the `executor`; `rules` says what a null GPU
//! does in place of kernels. Called by `driver`, which loads code and queues launches, and by `work`. What PTX means is
//! the business of `engine`; this folder does not know it.

pub mod code;
pub mod executor;
pub mod jit;
pub mod launch;
pub mod link;
pub mod rules;
pub mod source;
