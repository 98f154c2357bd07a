//! Drops rights that a process with untrusted commands does not need: system calls by seccomp ([`calls`]), files and
//! other processes by Landlock ([`files`]).
//!
//! The worker links this crate. An acceptor of offload, which runs Python, loads it as `libremotegpu_sandbox.so`
//! ([`exports`]).

pub mod calls;
pub mod exports;
pub mod files;
