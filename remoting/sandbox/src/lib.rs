//! Drops rights that a process with a stranger's commands does not need: system calls by seccomp ([`calls`]), files and
//! other processes by Landlock ([`files`]).
//!
//! The worker links it. An acceptor of offload, which is Python, loads it as `libremotegpu_sandbox.so` ([`exports`]).

pub mod calls;
pub mod exports;
pub mod files;
