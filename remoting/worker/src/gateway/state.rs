//! The state that all connections of the gateway share.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use super::control_port::connections::Connections;
use super::events::Events;
use super::registry::Registry;
use super::strangers::probation::Door;
use super::tls::Certificate;
use super::turns::Turns;

pub struct Gateway {
    pub registry: Mutex<Registry<OwnedFd>>,
    /// Wakes the connections that wait for the order that admits them.
    pub ordered: Notify,
    pub events: Events,
    pub tls: Option<Certificate>,
    pub connections: Connections,
    pub acceptors: Arc<Door>,
    /// The thread that gives turns. It is set when the appliance first divides the time of its GPUs.
    pub turns: OnceLock<Turns>,
}

impl Gateway {
    /// Returns the thread that gives turns, and starts the thread at the first call.
    pub fn turns(self: &Arc<Self>) -> io::Result<&Turns> {
        if let Some(turns) = self.turns.get() {
            return Ok(turns);
        }
        let gateway = Arc::downgrade(self);
        let started = Turns::start(move |used| {
            if let Some(gateway) = gateway.upgrade() {
                gateway.events.used(used);
            }
        })?;
        Ok(self.turns.get_or_init(|| started))
    }

    pub fn registry(&self) -> MutexGuard<'_, Registry<OwnedFd>> {
        // Every method of the registry leaves it consistent at each point where the method could panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
