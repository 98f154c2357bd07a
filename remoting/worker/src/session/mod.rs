//! The session: one client, its objects, and the event loop between the client, the appliance and the GPU.
//!
//! `server` is the loop, `commands` takes frames in sequence, `objects` are what the client named, `control` and `requests`
//! are the two ways of the socket to the appliance, `budgets` is what a session may have. `calls` is what generated code
//! sees. Called by `main`. Everything else in this crate is asked by it.

pub mod budgets;
pub mod calls;
pub mod commands;
pub(crate) mod contexts;
pub mod control;
pub(crate) mod current;
pub mod objects;
pub(crate) mod peers;
pub(crate) mod requests;
pub mod server;
pub(crate) mod settings;
pub mod snapshot;
