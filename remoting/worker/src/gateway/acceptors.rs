//! Connections from acceptors of offload, which have no network. Each acceptor has its own socket, on which it requests
//! connections and receives one end of a socket pair for each. The gateway serves the other end like a connection from
//! a port, without TLS. The connection begins with a preface of a session's data, or carries calls of the control
//! service, which learns the session of the acceptor.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use carrier::to_hex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use super::admission::preface_follows;
use super::control_port::service;
use super::opening::{Refused, Speaks, first_bytes, refused, speaks};
use super::pass;
use super::registry::Id;
use super::rewind::Rewind;
use super::state::Gateway;
use super::strangers::probation::{Most, Probation};

/// Limit on an acceptor's connections that no worker has yet. An acceptor that requests more waits.
const MOST: usize = 32;

/// The limits on the connections of all acceptors together: none, because each acceptor has its own limit.
pub const ANY: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };

/// Serves the acceptor of a session until it closes its socket.
///
/// # Errors
/// Fails if the system has no more descriptors.
pub async fn serve(gateway: Arc<Gateway>, session: Id, socket: OwnedFd) -> io::Result<()> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    // Tokio has no type for packet sockets. This socket keeps packet boundaries, like the appliance's (`control`).
    let socket = UnixStream::from_std(socket)?;
    let places = Arc::new(Semaphore::new(MOST));
    let name = format!("session:{}", to_hex(&session));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let received = socket.async_io(Interest::READABLE, || pass::receive(&socket)).await?;
        // The packet's content and its descriptors are ignored.
        if received.is_none() {
            return Ok(());
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        if pass::send(&socket, b"{}", Some(theirs.as_fd())).is_err() {
            // The acceptor does not read its answers, or has ended.
            continue;
        }
        let (gateway, name) = (gateway.clone(), name.clone());
        tokio::spawn(async move {
            if let Err(reason) = serve_one(&gateway, &name, ours).await {
                gateway.events.refused(name, reason);
            }
            drop(place);
        });
    }
}

async fn serve_one(gateway: &Gateway, name: &str, stream: std::os::unix::net::UnixStream) -> Result<(), Refused> {
    let stream = UnixStream::from_std(stream)?;
    let probation = Probation::new(&gateway.acceptors, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    tokio::select! {
        served = connection(gateway, name, stream, &probation) => served,
        reason = probation.over() => Err(reason.into()),
    }
}

async fn connection(
    gateway: &Gateway,
    name: &str,
    mut stream: UnixStream,
    probation: &Arc<Probation>,
) -> Result<(), Refused> {
    let Some(head) = first_bytes(&mut stream).await? else { return Ok(()) };
    match speaks(head) {
        Speaks::Preface => preface_follows(gateway, head, stream, probation).await.map(drop),
        Speaks::Http2 => {
            let socket = stream.as_fd().try_clone_to_owned()?;
            service::pass_on(gateway, socket, Rewind::new(head, stream), name, probation).await
        }
        Speaks::Tls | Speaks::Unknown => refused("speaks none of the carriers"),
    }
}
