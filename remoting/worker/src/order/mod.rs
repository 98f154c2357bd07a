//! Order: which command may run when, and what is known to be complete.
//!
//! A frame becomes a `command` with its keys; `sched` decides by the `rules` whether it may run; `dispatch` executes
//! it; `completer` queries the progress of streams and reports to the client. Streams, events and what waits for them
//! are here, too; `turns` has launches wait for the GPU. Called by `session`. It does not know what a command does.

pub mod command;
pub mod completer;
pub(crate) mod completions;
pub(crate) mod dispatch;
pub(crate) mod gates;
pub(crate) mod launch_events;
pub(crate) mod pending;
pub mod rules;
pub mod sched;
pub(crate) mod shared_events;
pub(crate) mod streams;
mod turns;
