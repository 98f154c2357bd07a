//! The session: one client, its objects, and the event loop between the client, the appliance and the GPU.
//!
//! `server` is the loop, `commands` takes frames in sequence, and `objects` holds the client's objects. `control` and
//! `requests` are the two directions of the socket to the appliance. `budgets` holds a session's limits, and `calls`
//! serves generated code. `main` calls this folder, which uses all other parts of the crate.

pub mod budgets;
pub mod calls;
pub mod commands;
pub(crate) mod contexts;
pub mod control;
pub(crate) mod created;
pub(crate) mod current;
pub mod objects;
pub(crate) mod peers;
pub(crate) mod requests;
pub mod server;
pub(crate) mod settings;
pub mod snapshot;
