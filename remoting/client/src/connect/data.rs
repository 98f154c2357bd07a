//! The data connection of a session: a blocking stream socket that carries frames, independent of the transport below.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use carrier::proto::data_client::DataClient;
use carrier::{ACCEPTED, GONE, MOVED, from_pieces, into_pieces};
use driverapi::descriptors::apart;
use protocol::{Preface, PrefaceKind};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, send};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::answers::{Hello, SessionTicket};
use super::control::{PAUSE, STARTS_ANEW, explain};
use super::dial::{Connection, Target};
use super::error::{ConnectError, ErrorKind};
use super::limits::{MOST_MOVES, TIMEOUT};
use super::share::Share;
use super::shares::{followed, note_moved};
use super::{local, thread};
use crate::program::log;

/// The time limit for opening a stripe. If it is exceeded, the copy runs without stripes.
const STRIPE_PATIENCE: Duration = Duration::from_secs(2);

const CARRIER: &str = "REMOTEGPU_CARRIER";

/// The transport of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The appliance's Unix socket if it is on this machine; otherwise TCP or TLS, or gRPC if that fails.
    Auto,
    Direct,
    Grpc,
}

impl Carrier {
    fn from_name(name: Option<&str>) -> Result<Carrier, ConnectError> {
        match name {
            None | Some("" | "auto") => Ok(Carrier::Auto),
            Some("direct") => Ok(Carrier::Direct),
            Some("grpc") => Ok(Carrier::Grpc),
            Some(other) => Err(ConnectError::new(
                ErrorKind::Settings,
                format!("{CARRIER}={other} is none of the carriers; set it to auto, direct or grpc"),
            )),
        }
    }
}

/// Connects to the session's worker over the transport that the environment selects. `opening` has the first bytes for
/// the worker. They are sent together with the ticket, before the appliance has accepted the ticket.
///
/// Failures before the ticket was sent are retried for [`STARTS_ANEW`].
///
/// # Errors
/// If the appliance cannot be reached, or does not know the ticket any more.
pub fn open_data(
    share: &Share,
    hello: &Hello,
    ticket: &SessionTicket,
    opening: &[u8],
) -> Result<OwnedFd, ConnectError> {
    let carrier = Carrier::from_name(std::env::var(CARRIER).ok().as_deref())?;
    let begun = Instant::now();
    loop {
        match open_data_over(carrier, share, hello, ticket, opening) {
            Err(error) if error.kind == ErrorKind::Unreachable && begun.elapsed() < STARTS_ANEW => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Like [`open_data`], over the given transport.
///
/// # Errors
/// Those of [`open_data`].
pub fn open_data_over(
    carrier: Carrier,
    share: &Share,
    hello: &Hello,
    ticket: &SessionTicket,
    opening: &[u8],
) -> Result<OwnedFd, ConnectError> {
    let preface = Preface { kind: PrefaceKind::Session, id: ticket.session_id, ticket: ticket.ticket };
    open(carrier, share, hello.tls, ticket.way(), &First { preface, opening })
}

/// Reconnects to the session's worker after the connection broke. `epoch` must be higher than in any earlier attempt.
/// `received` is the number of bytes that this end has received. Returns the connection and the number of bytes that
/// the worker has received.
///
/// # Errors
/// `Gone` if the session does not exist any more. Other errors are those of [`open_data`], and a later attempt may
/// succeed.
pub fn reopen_data(
    share: &Share,
    hello: &Hello,
    ticket: &SessionTicket,
    epoch: u64,
    received: u64,
) -> Result<(OwnedFd, u64), ConnectError> {
    let carrier = Carrier::from_name(std::env::var(CARRIER).ok().as_deref())?;
    let preface = Preface::resume(ticket.session_id, &ticket.ticket, epoch, received);
    let socket = open(carrier, share, hello.tls, ticket.way(), &preface.into())?;
    let mut theirs = [0; 8];
    match receive(socket.as_fd(), &mut theirs, TIMEOUT) {
        Ok(()) => Ok((socket, u64::from_le_bytes(theirs))),
        Err(_) => Err(ConnectError::new(
            ErrorKind::Unreachable,
            format!("the worker of {} took no further connection of its session", share.endpoint),
        )),
    }
}

/// Opens a connection for sharing memory with the session's worker (`protocol::SharedMemory`). Returns `None` if the
/// worker is on another machine, if the lease has moved, if the environment selects a transport, or after an error.
pub fn open_memory(share: &Share, ticket: &SessionTicket) -> Option<OwnedFd> {
    let carrier = Carrier::from_name(std::env::var(CARRIER).ok().as_deref());
    let (share, moved) = followed(share);
    if carrier.ok()? != Carrier::Auto || moved.is_some() {
        return None;
    }
    let socket = local::memory_connection(&share, &ticket.data_socket, TIMEOUT)?;
    let preface = Preface::memory(ticket.session_id, &ticket.ticket).encode();
    // These bytes fit into the empty buffer of a new socket.
    let sent = send(&socket, &preface, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    sent.is_ok_and(|count| count == preface.len()).then_some(socket)
}

/// Opens an additional connection of the session ([`PrefaceKind::Stripe`]). Returns `None` after an error, and unless
/// frames use TCP or this library's TLS. A Unix socket is already as fast as memory, and gRPC serves networks that
/// allow nothing else.
pub fn open_stripe(share: &Share, hello: &Hello, ticket: &SessionTicket, number: u64) -> Option<OwnedFd> {
    let carrier = Carrier::from_name(std::env::var(CARRIER).ok().as_deref()).ok()?;
    let (share, moved) = followed(share);
    let socket = if moved.is_none() { ticket.data_socket.as_str() } else { "" };
    if carrier == Carrier::Grpc
        || carrier == Carrier::Auto && local::connection(&share, socket, STRIPE_PATIENCE).is_some()
    {
        return None;
    }
    let target = Target::new(&share, Some(moved.unwrap_or(ticket.data_port))).ok()?;
    if target.is_handed() || hello.tls != target.speaks_tls() {
        return None;
    }
    let preface = Preface::stripe(ticket.session_id, &ticket.ticket, number);
    let opened = direct(&target, &preface.into(), STRIPE_PATIENCE);
    opened.inspect_err(|error| log::line(log::Level::Info, &format!("no stripe: {error}"))).ok()
}

/// The endpoints of an appliance for data connections.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub port: u16,
    /// The path of a Unix socket for clients on the same machine, or empty.
    pub socket: &'a str,
}

impl SessionTicket {
    fn way(&self) -> Way<'_> {
        Way { port: self.data_port, socket: &self.data_socket }
    }
}

/// The first bytes of a new connection, which are sent together.
pub(super) struct First<'a> {
    pub preface: Preface,
    /// Bytes that the appliance forwards to the worker.
    pub opening: &'a [u8],
}

impl From<Preface> for First<'_> {
    fn from(preface: Preface) -> Self {
        First { preface, opening: &[] }
    }
}

/// Connects to the appliance that has the lease now. `tls` is set if the appliance has reported that it uses TLS.
///
/// # Errors
/// Those of [`open_data`]; `Appliance` after too many moves of the lease.
pub(super) fn open(
    carrier: Carrier,
    share: &Share,
    tls: bool,
    way: Way<'_>,
    first: &First<'_>,
) -> Result<OwnedFd, ConnectError> {
    for _ in 0..MOST_MOVES {
        let (share, moved) = followed(share);
        // If the lease has moved, its Unix socket at the new appliance is not known.
        let way = moved.map_or(way, |port| Way { port, socket: "" });
        match open_at(carrier, &share, tls, way, first) {
            Err(error) if error.kind == ErrorKind::Moved => {}
            done => return done,
        }
    }
    let message = format!("the lease of {} moves from one appliance to the next; see their logs", share.endpoint);
    Err(ConnectError::new(ErrorKind::Appliance, message))
}

/// Connects to the appliance of `share`.
///
/// # Errors
/// `Moved` if another appliance has the lease.
fn open_at(
    carrier: Carrier,
    share: &Share,
    tls: bool,
    way: Way<'_>,
    first: &First<'_>,
) -> Result<OwnedFd, ConnectError> {
    let target = Target::new(share, Some(way.port))?;
    if tls != target.speaks_tls() && !target.is_handed() {
        let message =
            format!("the data port {} and the share's CA file do not agree on TLS; give both or none", target.peer());
        return Err(ConnectError::new(ErrorKind::Tls, message));
    }
    let limit = target.limit(TIMEOUT);
    if carrier == Carrier::Auto
        && let Some(socket) = local::connection(share, way.socket, limit)
    {
        match introduce(&target, socket.as_fd(), first, limit) {
            Ok(()) => return Ok(socket),
            Err(error) if matches!(error.kind, ErrorKind::Gone | ErrorKind::Moved) => return Err(error),
            Err(error) => log::line(log::Level::Info, &format!("not by the Unix socket: {error}; trying TCP")),
        }
    }
    match carrier {
        // The gateway accepts gRPC on these connections only for calls.
        _ if target.is_handed() => direct(&target, first, limit),
        Carrier::Direct => direct(&target, first, limit),
        Carrier::Grpc => grpc(target, first, limit),
        Carrier::Auto => direct(&target, first, limit / 2).or_else(|direct_error| {
            if matches!(direct_error.kind, ErrorKind::Gone | ErrorKind::Moved) {
                return Err(direct_error);
            }
            log::line(log::Level::Info, &format!("not directly: {direct_error}; trying gRPC"));
            // If both fail, the error of gRPC is useful only if it is a refusal.
            grpc(target, first, limit / 2).map_err(|error| match error.kind {
                ErrorKind::Refused | ErrorKind::Gone | ErrorKind::Moved => error,
                _ => direct_error,
            })
        }),
    }
}

/// Connects with TCP. If the share uses TLS, a new thread encrypts and decrypts the connection's bytes.
fn direct(target: &Target, first: &First<'_>, limit: Duration) -> Result<OwnedFd, ConnectError> {
    if target.speaks_tls() {
        let target = target.clone();
        return pumped(target.clone(), first, limit, async move |core, failure| {
            match target.connect(b"remotegpu/1").await {
                // Either end may close first. The other end then receives EOF.
                Ok(connection) => drop(carrier::pump(core, connection).await),
                Err(error) => failure.set(error),
            }
        });
    }
    let dialled = target.clone();
    let socket = thread::run(async move || {
        timeout(limit, dialled.bare()).await.unwrap_or_else(|_| Err(dialled.too_slow(limit)))
    })?;
    introduce(target, socket.as_fd(), first, limit)?;
    Ok(socket)
}

fn grpc(target: Target, first: &First<'_>, limit: Duration) -> Result<OwnedFd, ConnectError> {
    let peer = target.clone();
    pumped(peer, first, limit, async move |core, failure| {
        let (channel, answer) = match target.channel().await {
            Ok(made) => made,
            Err(error) => return failure.set(error),
        };
        let (upward, downward) = tokio::io::split(core);
        match DataClient::new(channel).session(into_pieces(upward)).await {
            Ok(pieces) => drop(carrier::copy(from_pieces(pieces.into_inner()), downward).await),
            Err(status) => failure.set(explain(&target, &answer, &status).await),
        }
    })
}

/// The error that ended a pump before the session began.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<ConnectError>>>);

impl Failure {
    fn set(&self, error: ConnectError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn take(&self) -> Option<ConnectError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns one end of a socket pair. `pump` forwards between the other end and the appliance, on a thread that ends
/// with the connection.
fn pumped(
    target: Target,
    first: &First<'_>,
    limit: Duration,
    pump: impl AsyncFnOnce(Connection, Failure) + Send + 'static,
) -> Result<OwnedFd, ConnectError> {
    let (socket, far) = apart(std::os::unix::net::UnixStream::pair).map_err(thread::no_thread)?;
    far.set_nonblocking(true).map_err(thread::no_thread)?;
    let failure = Failure::default();
    let cause = failure.clone();
    let started = thread::start("remotegpu-pump", async move || {
        if let Ok(core) = UnixStream::from_std(far) {
            pump(Connection::local(core), failure).await;
        }
    });
    started.map_err(thread::no_thread)?;
    let socket = OwnedFd::from(socket);
    introduce(&target, socket.as_fd(), first, limit).map_err(|error| cause.take().unwrap_or(error))?;
    Ok(socket)
}

/// Sends the first bytes and waits until the appliance has accepted the preface.
fn introduce(target: &Target, socket: BorrowedFd<'_>, first: &First<'_>, limit: Duration) -> Result<(), ConnectError> {
    let mut answer = [0];
    // These bytes fit into any socket's buffer.
    let sent = send(socket, &[&first.preface.encode(), first.opening].concat(), SendFlags::NOSIGNAL);
    match (sent.and_then(|_| receive(socket, &mut answer, limit)), answer) {
        (Ok(()), [ACCEPTED]) => Ok(()),
        (Ok(()), [GONE]) => {
            let message = format!("{} has no such session any more", target.peer());
            Err(ConnectError::new(ErrorKind::Gone, message))
        }
        (Ok(()), [MOVED]) => {
            let mut len = [0; 2];
            let told = receive(socket, &mut len, limit).and_then(|()| {
                let mut told = vec![0; usize::from(u16::from_le_bytes(len))];
                receive(socket, &mut told, limit).map(|()| told)
            });
            let peer = target.peer();
            // A process that only holds a lease does not log this, because the programs on the lease do.
            let tell = first.preface.kind != PrefaceKind::Lease;
            match told.ok().and_then(|told| note_moved(&target.place, &told, tell)) {
                Some(()) => Err(ConnectError::new(ErrorKind::Moved, format!("the lease is no longer at {peer}"))),
                None => Err(ConnectError::new(
                    ErrorKind::Unreachable,
                    format!("{peer} does not say where the lease has moved to; see the appliance's log"),
                )),
            }
        }
        (Err(Errno::AGAIN), _) => Err(target.too_slow(limit)),
        _ if first.preface.kind == PrefaceKind::Lease => {
            let message = format!("{} did not accept the lease: is it the appliance's data port?", target.peer());
            Err(ConnectError::new(ErrorKind::Unreachable, message))
        }
        _ => {
            let message = format!(
                "{} did not accept this process's session; its ticket was used or is older than 10 s, or the port is not an appliance's; start the program again",
                target.peer()
            );
            Err(ConnectError::new(ErrorKind::Refused, message))
        }
    }
}

/// Receives exactly `bytes.len()` bytes. Waits at most `limit` for each part.
fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], limit: Duration) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(limit))?;
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        match rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *rest, RecvFlags::empty()))? {
            (_, 0) => return Err(Errno::CONNRESET),
            (_, count) => filled += count,
        }
    }
    set_socket_timeout(socket, Timeout::Recv, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_carrier_is_chosen_by_name() {
        assert_eq!(Carrier::from_name(None), Ok(Carrier::Auto));
        assert_eq!(Carrier::from_name(Some("grpc")), Ok(Carrier::Grpc));
        let error = Carrier::from_name(Some("pigeon")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Settings);
        assert!(error.message.contains("REMOTEGPU_CARRIER=pigeon"), "{}", error.message);
    }
}
