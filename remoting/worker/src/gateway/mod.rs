//! The gateway: the only program of an appliance that accepts connections. It ends TLS, and keeps one peer, or many
//! unauthenticated ones, from locking others out.
//!
//! It reads from a data connection which session or lease it is for, checks the one-time ticket that the appliance
//! registered, and gives the connected socket to the session's worker. TLS and HTTP/2 end in the gateway, and the
//! worker gets one end of a socket pair: the certificate's key never enters a process that runs a tenant's commands.

mod acceptors;
mod connection;
mod control;
mod crowd;
mod events;
mod grpc;
mod listen;
mod options;
mod pass;
mod probation;
mod ration;
mod refusals;
mod registry;
mod rewind;
mod service;
mod tls;
pub mod turns;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

pub use options::{KeyPair, Options};

use events::{Event, Events};
use listen::Port;
use probation::{Door, Most};
use registry::Registry;

/// Limits on unauthenticated connections of a port. A new one never waits: another unauthenticated connection leaves
/// for it.
const STRANGERS: Most = Most { in_all: 256, of_peer: 64 };

/// Time limit for a data connection to send a valid preface.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for a control connection until a call authenticates it. The API server may have to be asked.
const CONTROL_PATIENCE: Duration = Duration::from_secs(15);

/// Limit on the bytes that are read from an unauthenticated data connection: a TLS handshake and a preface are less.
/// Further bytes wait in the network.
const RATION: usize = 64 << 10;

/// The same limit for a control connection: its first call may contain an authority's certificates, 64 KiB of them.
const CONTROL_RATION: usize = 96 << 10;

/// Limits on authenticated control connections: many programs may run at one address.
const CALLERS: Most = Most { in_all: 4096, of_peer: 1024 };

/// Limits on authenticated data connections: none, because leases and sessions have their own.
const TENANTS: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };

/// State that every connection needs.
struct Gateway {
    registry: Mutex<Registry<OwnedFd>>,
    /// Wakes connections that came before the order that admits them.
    ordered: Notify,
    events: Events,
    tls: Option<tls::Certificate>,
    connections: service::Connections,
    acceptors: Arc<Door>,
    /// Set once the appliance divides the time of its GPUs.
    turns: OnceLock<turns::Turns>,
}

impl Gateway {
    /// Returns the thread that gives turns. Starts it at the first use.
    fn turns(self: &Arc<Self>) -> io::Result<&turns::Turns> {
        if let Some(turns) = self.turns.get() {
            return Ok(turns);
        }
        let gateway = Arc::downgrade(self);
        let started = turns::Turns::start(move |used| {
            if let Some(gateway) = gateway.upgrade() {
                gateway.events.used(used);
            }
        })?;
        Ok(self.turns.get_or_init(|| started))
    }

    fn registry(&self) -> MutexGuard<'_, Registry<OwnedFd>> {
        // The registry's methods leave it whole at every point where they could panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until the appliance closes the control socket.
///
/// # Errors
/// If the certificate cannot be read or an address cannot be listened on.
pub async fn run(options: Options, control: OwnedFd) -> io::Result<()> {
    let tls = options.tls.map(tls::Certificate::load).transpose()?;
    let data = listen::bind(&options.listen).await?;
    let control_port = listen::bind(&options.control_listen).await?;
    let (events, outgoing) = events::channel();
    let ports = Event::Listening { port: data.local_addr()?.port(), control: control_port.local_addr()?.port() };
    events.send(ports).await;
    let gateway = Arc::new(Gateway {
        registry: Mutex::default(),
        ordered: Notify::new(),
        events,
        tls,
        connections: service::Connections::new(options.control_socket)?,
        acceptors: Door::new(CONTROL_PATIENCE, acceptors::ANY, acceptors::ANY),
        turns: OnceLock::new(),
    });
    let data_door = Door::new(PATIENCE, STRANGERS, TENANTS);
    let control_door = Door::new(CONTROL_PATIENCE, STRANGERS, CALLERS);
    if let Some(path) = options.data_socket {
        tokio::spawn(listen::accept_local(gateway.clone(), path, data_door.clone()));
    }
    tokio::spawn(listen::accept_for_ever(gateway.clone(), data, Port::Data, data_door));
    tokio::spawn(listen::accept_for_ever(gateway.clone(), control_port, Port::Control, control_door));
    control::serve(&gateway, control, outgoing).await
}
