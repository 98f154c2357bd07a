//! Code and its launches, from an image in memory to a running kernel.
//!
//! `source` finds the PTX in an image. `code` has the modules, libraries and functions, and `link` and `jit` are the
//! linker and its options. `launch` checks a launch and runs it on the `executor`. `rules` has the values that a null
//! GPU writes in place of kernels. `driver` loads code and queues launches with this module, and `work` runs launches.
//! `engine` compiles and executes PTX.

pub mod code;
pub mod executor;
pub mod jit;
pub mod launch;
pub mod link;
pub mod rules;
pub mod source;
