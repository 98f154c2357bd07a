//! The gateway: the only program of an appliance that accepts connections. It ends TLS, and keeps one peer, or many
//! unauthenticated ones, from locking others out.
//!
//! It reads from a data connection which session or lease it is for, checks the one-time ticket that the appliance
//! registered, and gives the connected socket to the session's worker. TLS and HTTP/2 end in the gateway, and the
//! worker gets one end of a socket pair: the certificate's key never enters a process that runs a tenant's commands.
//!
//! `serving` begins with the ports, `listen` accepts, `opening` reads the first bytes, `admission` hands over;
//! `strangers` limits who is not authenticated yet, and `control` has the appliance's orders.

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
