//! The gateway: the only program of an appliance that accepts connections. It terminates TLS, and prevents peers, one
//! or many, from locking others out without authentication.
//!
//! The gateway reads from a data connection which session or lease it belongs to, checks the one-time ticket that the
//! appliance registered, and gives the connected socket to the session's worker. If a connection uses TLS or HTTP/2,
//! the worker gets one end of a socket pair. Therefore the certificate's key never enters a process that runs a
//! tenant's commands.
//!
//! `serving` opens the ports, `listen` accepts, `opening` reads the first bytes, and `admission` hands over.
//! `strangers` limits unauthenticated peers, and `control` receives the appliance's orders.

mod acceptors;
mod admission;
mod connection;
mod control;
mod control_port;
mod events;
mod grpc;
mod listen;
mod opening;
mod options;
mod pass;
mod refusals;
mod registry;
mod rewind;
mod serving;
mod state;
mod strangers;
mod tls;
pub mod turns;

pub use options::{KeyPair, Options};
pub use serving::run;
