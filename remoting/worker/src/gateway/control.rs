//! The socket to the appliance, with packets of one JSON object each. The gateway receives orders on it, carries them
//! out, and reports [events](super::events).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use carrier::from_hex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::state::Gateway;
use super::{acceptors, pass};
use crate::packets::{GatewayEvent, GatewayOrder};

/// Limit on the packets that a worker has not read, in bytes as the kernel counts them. A packet with a descriptor
/// counts about 1000 bytes.
const UNREAD_BYTES: usize = 16 << 10;

/// Carries out the appliance's orders and reports events until the appliance closes the socket.
pub async fn serve(gateway: &Arc<Gateway>, socket: OwnedFd, events: mpsc::Receiver<GatewayEvent>) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    match converse(gateway, socket, events).await {
        // The appliance closed the socket before it had read all events.
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => Ok(()),
        ended => ended,
    }
}

async fn converse(gateway: &Arc<Gateway>, socket: OwnedFd, mut events: mpsc::Receiver<GatewayEvent>) -> io::Result<()> {
    // Tokio has no type for packet sockets. This one keeps packet boundaries, and `pass` reads and writes whole
    // packets.
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UnixStream::from_std(socket)?;
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            received = socket.async_io(Interest::READABLE, || pass::receive(&socket)) => match received {
                Ok(Some((packet, descriptors))) => obey(gateway, &packet, descriptors),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            },
            Some(event) = events.recv() => report(&socket, &event).await?,
            _ = clock.tick() => {
                gateway.registry().expire(Instant::now());
                if let Some(event) = gateway.events.left_out() {
                    report(&socket, &event).await?;
                }
            }
        }
    }
}

async fn report(socket: &UnixStream, event: &GatewayEvent) -> io::Result<()> {
    let packet = serde_json::to_vec(event)?;
    socket.async_io(Interest::WRITABLE, || pass::send(socket, &packet, None)).await
}

fn obey(gateway: &Arc<Gateway>, packet: &[u8], descriptors: Vec<OwnedFd>) {
    if carry_out(gateway, packet, descriptors).is_some() {
        gateway.ordered.notify_waiters();
    } else {
        // The appliance is trusted, so this is a mistake in the program. It is reported, and no session ends. Only the
        // beginning of the packet is printed, because it may contain a ticket.
        eprintln!("remotegpu-gateway: not an order: {} bytes that begin with {:?}", packet.len(), beginning(packet));
    }
}

/// Returns the socket on which a worker receives connections. Only a few may wait there: the kernel counts unread
/// descriptors of all processes of a user together, and a worker may never read.
fn way_to_worker(descriptors: Vec<OwnedFd>) -> Option<OwnedFd> {
    let worker = descriptors.into_iter().next()?;
    rustix::net::sockopt::set_socket_send_buffer_size(&worker, UNREAD_BYTES).ok()?;
    Some(worker)
}

/// Returns the beginning of the packet, up to the name of the order.
fn beginning(packet: &[u8]) -> String {
    let text = String::from_utf8_lossy(&packet[..packet.len().min(40)]).into_owned();
    text.split(',').next().unwrap_or_default().to_owned()
}

fn carry_out(gateway: &Arc<Gateway>, packet: &[u8], descriptors: Vec<OwnedFd>) -> Option<()> {
    let mut registry = gateway.registry();
    match serde_json::from_slice(packet).ok()? {
        GatewayOrder::Session { id, ticket, resumes } => {
            let worker = way_to_worker(descriptors)?;
            registry.add_session(from_hex(&id)?, from_hex(&ticket)?, worker, resumes, Instant::now());
        }
        GatewayOrder::Joined { id, ticket } => {
            let worker = way_to_worker(descriptors)?;
            registry.add_joined(from_hex(&id)?, from_hex(&ticket)?, worker, Instant::now());
        }
        GatewayOrder::Lease { id, ticket } => registry.add_lease(from_hex(&id)?, from_hex(&ticket)?),
        GatewayOrder::Moved { id, ticket, to } => registry.add_moved(from_hex(&id)?, from_hex(&ticket)?, to),
        GatewayOrder::Sync { number } => {
            let gateway = gateway.clone();
            tokio::spawn(async move { gateway.events.send(GatewayEvent::Synced { number }).await });
        }
        GatewayOrder::Acceptor { id } => {
            let socket = descriptors.into_iter().next()?;
            tokio::spawn(acceptors::serve(gateway.clone(), from_hex(&id)?, socket));
        }
        GatewayOrder::Share { lease, places } => gateway.turns().ok()?.share(from_hex(&lease)?, places),
        GatewayOrder::Turns { id, lease } => {
            let socket = descriptors.into_iter().next()?;
            gateway.turns().ok()?.join(from_hex(&id)?, from_hex(&lease)?, socket);
        }
        GatewayOrder::Forget { id } => {
            let id = from_hex(&id)?;
            registry.forget(&id);
            if let Some(turns) = gateway.turns.get() {
                turns.forget(id);
            }
        }
        GatewayOrder::Known { connection } => gateway.connections.known(connection),
    }
    Some(())
}
