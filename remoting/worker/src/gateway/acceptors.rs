//! Acceptors of offload. They have no network: on a socket of its own each asks for connections, and gets one end of a
//! socket pair. The gateway serves the other end like a connection from a port, without TLS: a preface of a session's
//! data, or calls of the control service, which learns the acceptor's session.

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

/// Limit on an acceptor's connections that were not handed to a worker. An acceptor that wants more waits.
const MOST: usize = 32;

/// Limits on connections of all acceptors together: none, because each acceptor has its own limit.
pub const ANY: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };

/// Serves the acceptor of a session until it closes its socket.
///
/// # Errors
/// If the system has no more descriptors.
pub async fn serve(gateway: Arc<Gateway>, session: Id, socket: OwnedFd) -> io::Result<()> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    // A stream socket only by type, like the appliance's (`control`).
    let socket = UnixStream::from_std(socket)?;
    let places = Arc::new(Semaphore::new(MOST));
    let name = format!("session:{}", to_hex(&session));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        let received = socket.async_io(Interest::READABLE, || pass::receive(&socket)).await?;
        // The content does not matter, nor do descriptors that come with it.
        if received.is_none() {
            return Ok(());
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        if pass::send(&socket, b"{}", Some(theirs.as_fd())).is_err() {
            // The acceptor does not read its answers, or is gone.
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
