//! The open connections of the control port, and their connections to the appliance's service.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;
use tokio_rustls::rustls::crypto;

use crate::gateway::strangers::probation::Probation;

/// The open connections, by the numbers that the appliance uses for them.
#[derive(Debug)]
pub struct Connections {
    /// The path of the appliance's socket.
    service: PathBuf,
    /// The number of the latest connection. The first number is random, so that it differs from those of an earlier
    /// gateway or of another gateway on the same network.
    latest: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Probation>>>,
}

impl Connections {
    /// Creates the table without connections. `service` is the path of the appliance's socket.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn new(service: PathBuf) -> io::Result<Self> {
        let mut random = [0; size_of::<u64>()];
        let source = crypto::ring::default_provider().secure_random;
        source.fill(&mut random).map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let latest = AtomicU64::new(u64::from_ne_bytes(random) >> 1);
        Ok(Connections { service, latest, open: Mutex::default() })
    }

    /// Marks the connection as authenticated by a call. Ignores a connection that has ended meanwhile.
    pub fn known(&self, number: u64) {
        let probation = self.locked().get(&number).cloned();
        if let Some(probation) = probation {
            probation.pass();
        }
    }

    /// Connects to the appliance's service. The address of the socket contains the number and the peer, because gRPC
    /// gives the service no other information about a caller.
    pub fn connect(&self, number: u64, peer: impl Display) -> io::Result<UnixStream> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let name = format!("remotegpu/{number}/{peer}");
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.service)?)?;
        UnixStream::from_std(socket.into())
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<u64, Arc<Probation>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard that removes its entry from [`Connections`] when it is dropped.
pub struct Entry<'a>(&'a Connections, pub u64);

impl<'a> Entry<'a> {
    pub fn new(connections: &'a Connections, probation: &Arc<Probation>) -> Self {
        let number = connections.latest.fetch_add(1, Ordering::Relaxed) + 1;
        connections.locked().insert(number, probation.clone());
        Entry(connections, number)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.locked().remove(&self.1);
    }
}
