//! The gateway: the one program of an appliance that accepts data connections.
//!
//! It reads who a connection is for, checks the one-time ticket that the appliance registered, and gives the connected
//! socket to the session's worker. Where TLS or HTTP/2 must be ended it ends them and gives the worker one end of a socket
//! pair: the certificate's key never enters a process that runs a tenant's commands.

mod connection;
mod control;
mod grpc;
mod listen;
mod options;
mod pass;
mod probation;
mod registry;
mod rewind;
mod tls;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use options::{KeyPair, Options};

use control::Event;
use registry::Registry;

/// Connections that have not yet shown a ticket. More wait in the kernel's backlog until one of these is done, at the
/// latest after [`PATIENCE`].
const MAX_UNKNOWN: usize = 256;

/// How long a connection may take to show a valid preface.
const PATIENCE: Duration = Duration::from_secs(5);

/// What every connection needs.
struct Gateway {
    registry: Mutex<Registry<OwnedFd>>,
    /// Wakes those who came before the order that admits them.
    ordered: Notify,
    events: control::Events,
    tls: Option<tls::Certificate>,
}

impl Gateway {
    fn registry(&self) -> MutexGuard<'_, Registry<OwnedFd>> {
        // The registry's methods leave it whole at every point where they could panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until the appliance closes the control socket.
///
/// # Errors
/// If the certificate cannot be read or the address cannot be listened on.
pub async fn run(options: Options, control: OwnedFd) -> io::Result<()> {
    let tls = options.tls.map(tls::Certificate::load).transpose()?;
    let listener = listen::bind(&options.listen).await?;
    let (events, outgoing) = control::channel();
    events.send(Event::Listening { port: listener.local_addr()?.port() }).await;
    let gateway = Arc::new(Gateway { registry: Mutex::default(), ordered: Notify::new(), events, tls });
    tokio::spawn(listen::accept_for_ever(gateway.clone(), listener));
    control::serve(&gateway, control, outgoing).await
}
