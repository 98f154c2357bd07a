//! Admission: finds the owner of a connection by its preface, checks the ticket, and hands the connection over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use carrier::{ACCEPTED, GONE, MOVED, to_hex};
use protocol::{PREFACE_BYTES, Preface, PrefaceKind, RESUME_BYTES, STRIPE_BYTES};
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::opening::{Refused, refused};
use super::pass;
use super::registry::{Admitted, Place, Refusal};
use super::state::Gateway;
use super::strangers::probation::Probation;
use crate::packets::{GatewayEvent, Passed};

/// The longest time to wait for the order that admits a connection. Orders come through another socket, so the order
/// may be later than the connection.
const ORDER_DELAY: Duration = Duration::from_millis(100);

/// A stream that a worker can continue to use by its descriptor.
pub trait Local: AsyncRead + AsyncWrite + Unpin {
    fn into_fd(self) -> io::Result<OwnedFd>;
}

impl Local for TcpStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    }
}

impl Local for UnixStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    }
}

/// Reads the rest of a preface, and gives the connection to its worker or lease. For an additional connection of a
/// session, returns its place, which the caller keeps as long as the gateway serves a part of the connection.
pub async fn preface_follows(
    gateway: &Gateway,
    head: [u8; 4],
    mut stream: impl Local,
    probation: &Probation,
) -> Result<Option<Place>, Refused> {
    let preface = read_preface(&mut (&head[..]).chain(&mut stream)).await?;
    let place = admit(gateway, &preface, stream, probation).await?;
    // From here on, the receiver decides about the connection.
    probation.pass();
    Ok(place)
}

pub async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> Result<Preface, Refused> {
    let within = |_| Refused("closed within its preface".into());
    let mut bytes = [0; PREFACE_BYTES];
    stream.read_exact(&mut bytes).await.map_err(within)?;
    let Some(preface) = Preface::decode(&bytes) else { return refused("no preface of ours") };
    match preface.kind {
        PrefaceKind::Resume { .. } => {
            let mut bytes = [0; RESUME_BYTES];
            stream.read_exact(&mut bytes).await.map_err(within)?;
            Ok(preface.resumes(&bytes))
        }
        PrefaceKind::Stripe { .. } => {
            let mut bytes = [0; STRIPE_BYTES];
            stream.read_exact(&mut bytes).await.map_err(within)?;
            Ok(preface.numbered(&bytes))
        }
        PrefaceKind::Session | PrefaceKind::Lease | PrefaceKind::Memory => Ok(preface),
    }
}

/// Checks a preface and gives the connection to its worker or lease. Returns the same value as [`preface_follows`].
pub async fn admit(
    gateway: &Gateway,
    preface: &Preface,
    mut stream: impl Local,
    probation: &Probation,
) -> Result<Option<Place>, Refused> {
    let admitted = find(gateway, preface).await;
    let resumes = matches!(preface.kind, PrefaceKind::Resume { .. });
    if let (true, Err(Refusal::Unknown)) = (resumes, &admitted) {
        stream.write_all(&[GONE]).await?;
    }
    let admitted = admitted.map_err(|refusal| Refused(refusal.to_string()))?;
    // The worker decides whether a resuming connection is the newest one, because a recorded preface proves nothing.
    if !resumes {
        probation.pass();
    }
    match admitted {
        Admitted::Session(worker) => {
            stream.write_all(&[ACCEPTED]).await?;
            hand_over(&worker, Passed::Connection, &stream.into_fd()?).map_err(worker_is_gone)?;
            gateway.events.send(GatewayEvent::SessionConnected { id: to_hex(&preface.id) }).await;
        }
        Admitted::Resumed { worker, epoch, received, place } => {
            let connection = stream.into_fd()?;
            if let Err(error) = hand_over(&worker, Passed::Resume { epoch, received }, &connection) {
                // A worker whose queue is full may accept a later attempt. A worker that has ended accepts none.
                if error.kind() != io::ErrorKind::WouldBlock {
                    let _ = send(&connection, &[GONE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                }
                return Err(worker_is_gone(error));
            }
            return Ok(Some(place));
        }
        Admitted::Memory { worker, place } => {
            hand_over(&worker, Passed::Memory, &stream.into_fd()?).map_err(worker_is_gone)?;
            return Ok(Some(place));
        }
        Admitted::Stripe { worker, number, place } => {
            hand_over(&worker, Passed::Stripe { number }, &stream.into_fd()?).map_err(worker_is_gone)?;
            return Ok(Some(place));
        }
        Admitted::Moved(to) => {
            let mut answer = vec![MOVED];
            answer.extend_from_slice(&(to.len() as u16).to_le_bytes());
            answer.extend_from_slice(to.as_bytes());
            stream.write_all(&answer).await?;
        }
        Admitted::Lease { ended, first, holder } => {
            if first {
                gateway.events.send(GatewayEvent::LeaseHeld { id: to_hex(&preface.id) }).await;
            }
            hold(stream, ended).await;
            if gateway.registry().let_go(&preface.id, holder) {
                gateway.events.send(GatewayEvent::LeaseGone { id: to_hex(&preface.id) }).await;
            }
        }
    }
    Ok(None)
}

fn hand_over(worker: &OwnedFd, packet: Passed, connection: &OwnedFd) -> io::Result<()> {
    pass::send(worker, &serde_json::to_vec(&packet)?, Some(connection.as_fd()))
}

fn worker_is_gone(error: io::Error) -> Refused {
    Refused(format!("its worker is gone: {error}"))
}

async fn find(gateway: &Gateway, preface: &Preface) -> Result<Admitted<OwnedFd>, Refusal> {
    let deadline = tokio::time::Instant::now() + ORDER_DELAY;
    loop {
        // The future is created before the look-up, so that it notices an order between the look-up and the wait.
        let order = gateway.ordered.notified();
        let decision = gateway.registry().admit(preface, Instant::now());
        let unknown = matches!(decision, Err(Refusal::Unknown));
        if !unknown || tokio::time::timeout_at(deadline, order).await.is_err() {
            return decision;
        }
    }
}

/// Returns when the connection or the lease ends. A connection that holds a lease carries no data.
async fn hold(mut stream: impl Local, mut ended: watch::Receiver<()>) {
    if stream.write_all(&[ACCEPTED]).await.is_err() {
        return;
    }
    let mut byte = [0];
    tokio::select! {
        // If the peer sends something, the connection ends too.
        _ = stream.read(&mut byte) => {}
        _ = ended.changed() => {}
    }
}
