//! One accepted connection: its protocol, its owner, and its hand-over.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use carrier::{ACCEPTED, GONE, MOVED, to_hex};
use protocol::{PREFACE_BYTES, Preface, PrefaceKind, RESUME_BYTES, STRIPE_BYTES};
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

use crate::guard::defences::{Defence, stands};

use super::events::Event;
use super::probation::Probation;
use super::ration::Rationed;
use super::registry::{Admitted, Place, Refusal};
use super::rewind::Rewind;
use super::{Gateway, grpc, pass};

/// Orders do not come through the data port: one may be this much later than the connection that it admits.
const ORDER_DELAY: Duration = Duration::from_millis(100);

/// The protocol that the first four bytes show. No more bytes are read than needed: the others belong to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Preface,
    Http2,
    Tls,
    Unknown,
}

pub fn speaks(head: [u8; 4]) -> Speaks {
    match &head {
        b"RGP1" | b"RGL1" | b"RGR1" | b"RGM1" | b"RGS1" => Speaks::Preface,
        b"PRI " => Speaks::Http2,
        // A TLS handshake record, version 3.x.
        [0x16, 3, _, _] => Speaks::Tls,
        _ => Speaks::Unknown,
    }
}

/// The reason why a connection was closed, for the log.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Refused(error.to_string())
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Refused(reason)
    }
}

pub fn refused<T>(reason: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(reason.into()))
}

/// The beginning of a connection: its first bytes (inside of TLS, if it has that) and their protocol.
pub struct First {
    pub head: [u8; 4],
    pub carrier: Carrier,
    pub stream: Stream,
    /// A second descriptor of the connection, for its settings.
    pub socket: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Frames that follow a preface.
    Frames,
    /// gRPC.
    Http2,
}

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<Rewind<Rationed<TcpStream>>>>),
}

/// Reads the first bytes of a connection, and does the TLS handshake. It takes no more than `ration` bytes before the
/// connection is authenticated. `None`: the connection was closed without a byte, by a peer that only checks whether
/// the port is open (`remotegpu doctor`, a load balancer).
pub async fn first(
    gateway: &Gateway,
    mut tcp: TcpStream,
    ration: usize,
    probation: &Arc<Probation>,
) -> Result<Option<First>, Refused> {
    let socket = tcp.as_fd().try_clone_to_owned()?;
    let Some(head) = first_bytes(&mut tcp).await? else { return Ok(None) };
    let (head, stream) = match (speaks(head), &gateway.tls) {
        (Speaks::Tls, Some(certificate)) => {
            let tcp = Rewind::new(head, Rationed::new(tcp, ration, probation));
            let handshake = certificate.acceptor().accept(tcp).await;
            let mut tls = handshake.map_err(|error| Refused(format!("TLS handshake failed: {error}")))?;
            let Some(head) = first_bytes(&mut tls).await? else { return Ok(None) };
            (head, Stream::Tls(Box::new(tls)))
        }
        (Speaks::Tls, None) => return refused("speaks TLS to an appliance without a certificate"),
        (Speaks::Unknown, _) => return refused("speaks none of the carriers"),
        (_, Some(_)) if stands(Defence::Plaintext) => {
            return refused("speaks plaintext to an appliance that demands TLS");
        }
        _ => (head, Stream::Plain(tcp)),
    };
    let carrier = match speaks(head) {
        Speaks::Preface => Carrier::Frames,
        Speaks::Http2 => Carrier::Http2,
        _ => return refused("speaks neither of the carriers inside TLS"),
    };
    Ok(Some(First { head, carrier, stream, socket }))
}

/// Serves a connection of the data port until it is handed over or, if it holds a lease, until it ends.
pub async fn serve(gateway: &Arc<Gateway>, tcp: TcpStream, probation: Arc<Probation>) -> Result<(), Refused> {
    let ration = super::RATION;
    let Some(First { head, carrier, stream, socket }) = first(gateway, tcp, ration, &probation).await? else {
        return Ok(());
    };
    match (carrier, stream) {
        (Carrier::Frames, Stream::Plain(tcp)) => preface_follows(gateway, head, tcp, &probation).await.map(drop),
        (Carrier::Frames, Stream::Tls(tls)) => {
            let (near, local) = UnixStream::pair()?;
            // Ends with either side; then nothing is left to send.
            let carried = tokio::spawn(carrier::followed(socket, carrier::pump(tls, near)));
            let place = preface_follows(gateway, head, local, &probation).await?;
            tokio::spawn(async move {
                let _ = carried.await;
                drop(place);
            });
            Ok(())
        }
        (Carrier::Http2, Stream::Plain(tcp)) => {
            let tcp = Rewind::new(head, Rationed::new(tcp, ration, &probation));
            Ok(carrier::followed(socket, grpc::serve(gateway, tcp, probation)).await?)
        }
        (Carrier::Http2, Stream::Tls(tls)) => {
            Ok(carrier::followed(socket, grpc::serve(gateway, Rewind::new(head, tls), probation)).await?)
        }
    }
}

pub async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<[u8; 4]>, Refused> {
    let mut head = [0; 4];
    match stream.read(&mut head[..1]).await {
        // Many probes close with a reset, or without the end that TLS has for it.
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) => {}
    }
    let read = stream.read_exact(&mut head[1..]).await;
    read.map(|_| Some(head)).map_err(|_| Refused("closed before its preface".into()))
}

/// A stream whose descriptor a worker can continue to use.
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

/// Reads the rest of a preface, and gives the connection to its worker or lease. Returns the place among the session's
/// other connections, if it is one of these: to be kept for as long as the gateway has a part of the connection.
pub async fn preface_follows(
    gateway: &Gateway,
    head: [u8; 4],
    mut stream: impl Local,
    probation: &Probation,
) -> Result<Option<Place>, Refused> {
    let preface = read_preface(&mut (&head[..]).chain(&mut stream)).await?;
    let place = admit(gateway, &preface, stream, probation).await?;
    // The receiver decides from here on.
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

/// Checks a preface and gives the connection to its worker or lease. Returns the same as [`preface_follows`].
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
    // The worker decides whether a connection that resumes is the newest: a recorded preface proves nothing.
    if !resumes {
        probation.pass();
    }
    match admitted {
        Admitted::Session(worker) => {
            stream.write_all(&[ACCEPTED]).await?;
            hand_over(&worker, br#"{"op":"connection"}"#, &stream.into_fd()?).map_err(worker_is_gone)?;
            gateway.events.send(Event::SessionConnected { id: to_hex(&preface.id) }).await;
        }
        Admitted::Resumed { worker, epoch, received, place } => {
            let packet = format!(r#"{{"op":"resume","epoch":{epoch},"received":{received}}}"#);
            let connection = stream.into_fd()?;
            if let Err(error) = hand_over(&worker, packet.as_bytes(), &connection) {
                // A worker that is behind may take a later attempt; a worker that is gone takes none.
                if error.kind() != io::ErrorKind::WouldBlock {
                    let _ = send(&connection, &[GONE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                }
                return Err(worker_is_gone(error));
            }
            return Ok(Some(place));
        }
        Admitted::Memory { worker, place } => {
            hand_over(&worker, br#"{"op":"memory"}"#, &stream.into_fd()?).map_err(worker_is_gone)?;
            return Ok(Some(place));
        }
        Admitted::Stripe { worker, number, place } => {
            let packet = format!(r#"{{"op":"stripe","number":{number}}}"#);
            hand_over(&worker, packet.as_bytes(), &stream.into_fd()?).map_err(worker_is_gone)?;
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
                gateway.events.send(Event::LeaseHeld { id: to_hex(&preface.id) }).await;
            }
            hold(stream, ended).await;
            if gateway.registry().let_go(&preface.id, holder) {
                gateway.events.send(Event::LeaseGone { id: to_hex(&preface.id) }).await;
            }
        }
    }
    Ok(None)
}

fn hand_over(worker: &OwnedFd, packet: &[u8], connection: &OwnedFd) -> io::Result<()> {
    pass::send(worker, packet, Some(connection.as_fd()))
}

fn worker_is_gone(error: io::Error) -> Refused {
    Refused(format!("its worker is gone: {error}"))
}

async fn find(gateway: &Gateway, preface: &Preface) -> Result<Admitted<OwnedFd>, Refusal> {
    let deadline = tokio::time::Instant::now() + ORDER_DELAY;
    loop {
        // Created before the look-up, so that an order between the look-up and the wait counts.
        let order = gateway.ordered.notified();
        let decision = gateway.registry().admit(preface, Instant::now());
        let unknown = matches!(decision, Err(Refusal::Unknown));
        if !unknown || tokio::time::timeout_at(deadline, order).await.is_err() {
            return decision;
        }
    }
}

/// Returns when the connection or the lease ends.
async fn hold(mut stream: impl Local, mut ended: watch::Receiver<()>) {
    if stream.write_all(&[ACCEPTED]).await.is_err() {
        return;
    }
    let mut byte = [0];
    tokio::select! {
        // A holding connection carries nothing; a peer that sends something counts as gone.
        _ = stream.read(&mut byte) => {}
        _ = ended.changed() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_carrier() {
        for (head, expected) in [
            (*b"RGP1", Speaks::Preface),
            (*b"RGL1", Speaks::Preface),
            (*b"RGR1", Speaks::Preface),
            (*b"RGM1", Speaks::Preface),
            (*b"RGS1", Speaks::Preface),
            (*b"PRI ", Speaks::Http2),
            ([0x16, 3, 1, 2], Speaks::Tls),
            (*b"GET ", Speaks::Unknown),
            (*b"RGP2", Speaks::Unknown),
            ([0x16, 2, 1, 2], Speaks::Unknown),
        ] {
            assert_eq!(speaks(head), expected, "{head:?}");
        }
    }
}
