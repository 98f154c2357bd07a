//! Code and its launches: from an image in memory to a kernel on a stream.
//!
//! `source` finds the PTX in an image, `loading` and `code` make modules, libraries and functions of it, `link` and
//! `jit` are the linker and its options, `launch` checks a launch and hands it to a stream. `rules` says what a null
//! GPU does in place of kernels. Called by `api`. What PTX means is the business of `engine`; this folder does not know
//! it.

pub mod code;
pub mod jit;
pub mod launch;
pub mod link;
pub mod loading;
pub mod rules;
pub mod source;
