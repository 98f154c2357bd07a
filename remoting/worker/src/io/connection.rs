//! The client's connection, and the later connections that replace it when it breaks.

use crate::guard::watchdog::ClientWatch;
use crate::io::packets::receive_packet;
use crate::io::writer::Outbox;
use crate::packets::Passed;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix, getsockname, send, shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The kind of connection that the gateway passed.
#[derive(Debug)]
pub enum Taken {
    Nothing,
    /// The connection is now the session's connection.
    Resumed,
    Memory(OwnedFd),
    Stripe {
        number: u64,
        socket: OwnedFd,
    },
}

/// The longest time to wait for a new connection of a client on this machine that closed its socket. If the client is
/// alive, it connects again at once.
const HUNG_UP: Duration = Duration::from_secs(1);

pub struct Connection {
    socket: Option<OwnedFd>,
    /// The socket on which the gateway passes further connections, or `None` if the gateway has ended.
    passed: Option<OwnedFd>,
    watch: ClientWatch,
    epoch: u64,
    /// Whether the client connected through a socket on this machine, which no network failure can break.
    local: bool,
    /// Whether the client's process is known to have ended.
    ended: bool,
    lost_at: Instant,
    /// The time that the session continues without a connection.
    grace: Duration,
}

impl Connection {
    /// Creates the connection. If `grace` is above zero, other connections may follow, and `out` keeps the bytes that
    /// may have to be sent again.
    ///
    /// # Errors
    /// Fails if no descriptors or threads are left.
    pub fn new(socket: OwnedFd, passed: OwnedFd, grace: Duration, out: &mut Outbox) -> io::Result<Self> {
        let watch = ClientWatch::start(grace)?;
        watch.follow(socket.as_fd())?;
        if !grace.is_zero() {
            out.keep();
        }
        let (local, lost_at) = (is_local(&socket), Instant::now());
        Ok(Connection {
            socket: Some(socket),
            passed: Some(passed),
            watch,
            epoch: 0,
            local,
            ended: false,
            lost_at,
            grace,
        })
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub fn passed(&self) -> Option<BorrowedFd<'_>> {
        self.passed.as_ref().map(AsFd::as_fd)
    }

    /// Records that the connection broke. From now on frames are kept until another connection comes or the grace is
    /// over.
    pub fn lose(&mut self) {
        self.close();
        self.lost_at = Instant::now();
    }

    /// Returns the time that the session still waits for a connection, or `None` while it has one.
    pub fn patience(&self) -> Option<Duration> {
        let grace = match self.passed {
            Some(_) if self.local || self.ended => self.grace.min(HUNG_UP),
            Some(_) => self.grace,
            None => Duration::ZERO,
        };
        self.socket.is_none().then(|| grace.saturating_sub(self.lost_at.elapsed()))
    }

    /// Whether the client closed the connection itself: the client is on this machine, or its process has ended.
    pub fn is_hung_up(&self) -> bool {
        self.socket.is_none() && (self.local || self.ended)
    }

    /// Records that the client's process has ended. No other connection is expected.
    pub fn note_end_of_client(&mut self) {
        self.ended = true;
    }

    /// Refuses attempts of the client to connect whose epoch is at most `epoch`, because another worker has handled
    /// them.
    pub fn follows(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn is_over(&self) -> bool {
        self.patience() == Some(Duration::ZERO)
    }

    /// Takes a connection that the gateway passes. A connection that resumes the session is closed, without any change,
    /// if a later one already arrived, or if it states that the client received more than was sent. Connections for
    /// other uses are returned.
    ///
    /// # Errors
    /// Fails if no descriptors are left.
    pub fn take_passed(&mut self, out: &mut Outbox) -> io::Result<Taken> {
        let Some(passed) = self.passed() else { return Ok(Taken::Nothing) };
        let mut packet = [0; 256];
        let (count, socket) = receive_packet(passed, &mut packet, RecvFlags::DONTWAIT)?;
        if count == 0 {
            self.passed = None;
        }
        match (serde_json::from_slice(&packet[..count]), socket) {
            (Ok(Passed::Resume { epoch, received }), Some(socket)) => self.resume(epoch, received, socket, out),
            (Ok(Passed::Memory), Some(socket)) => Ok(Taken::Memory(socket)),
            (Ok(Passed::Stripe { number }), Some(socket)) => Ok(Taken::Stripe { number, socket }),
            _ => Ok(Taken::Nothing),
        }
    }

    fn resume(&mut self, epoch: u64, received: u64, socket: OwnedFd, out: &mut Outbox) -> io::Result<Taken> {
        if self.grace.is_zero() || epoch <= self.epoch || out.rewind(received).is_err() {
            return Ok(Taken::Nothing);
        }
        self.close();
        self.epoch = epoch;
        let mut answer = [carrier::ACCEPTED; 9];
        answer[1..].copy_from_slice(&out.received().to_le_bytes());
        // The answer always fits into the send buffer of a new socket.
        if send(&socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.lose();
            return Ok(Taken::Nothing);
        }
        self.watch.follow(socket.as_fd())?;
        self.local = is_local(&socket);
        self.socket = Some(socket);
        Ok(Taken::Resumed)
    }

    /// Shuts the socket down. The watchdog also has the socket, and drops it when this happens.
    fn close(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}

/// Whether this is a Unix socket with a path. A connection that the gateway decodes (TLS, gRPC) arrives on a socket
/// without a path.
fn is_local(socket: &OwnedFd) -> bool {
    let name = getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    name.is_some_and(|name| name.path().is_some())
}
