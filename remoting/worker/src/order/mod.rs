//! The order of commands: when a command may run, and which work is known to be complete.
//!
//! A frame becomes a `command` with keys. `sched` decides by the rules whether the command may run, and `dispatch`
//! executes it. `completer` queries the progress of streams and reports to the client. Streams and events belong to
//! this folder too. `turns` lets launches wait for the GPU. `session` calls this folder, which does not know the
//! effects of a command.

pub mod command;
pub mod completer;
pub(crate) mod completions;
pub(crate) mod dispatch;
pub(crate) mod gates;
pub(crate) mod launch_events;
pub(crate) mod pending;
pub mod sched;
pub(crate) mod shared_events;
pub(crate) mod streams;
mod turns;
