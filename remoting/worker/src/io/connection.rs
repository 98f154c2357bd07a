//! The client's connection, and the ones that take its place when it breaks.

use crate::guard::watchdog::ClientWatch;
use crate::io::writer::Outbox;
use crate::session::server::receive_packet;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix, getsockname, send, shutdown};
use serde::Deserialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The gateway passes a connection that has proved whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Passed {
    /// In the place of the one before.
    Resume {
        /// Higher than that of every attempt of this client before.
        epoch: u64,
        /// How many bytes the client has received.
        received: u64,
    },
    /// By which the client shares memory.
    Memory,
    /// For bytes of large copies.
    Stripe { number: u64 },
}

/// What came of a connection that the gateway passed.
#[derive(Debug)]
pub enum Taken {
    Nothing,
    /// It is the session's now.
    Resumed,
    Memory(OwnedFd),
    Stripe {
        number: u64,
        socket: OwnedFd,
    },
}

/// A client of this machine that has closed its socket and lives takes another one at once.
const HUNG_UP: Duration = Duration::from_secs(1);

pub struct Connection {
    socket: Option<OwnedFd>,
    /// Where the gateway passes others, and those for memory; none where there is no gateway any more.
    passed: Option<OwnedFd>,
    watch: ClientWatch,
    epoch: u64,
    /// The client reached a socket of this machine, which no network can cut.
    local: bool,
    /// The client's process is known to have ended.
    ended: bool,
    lost_at: Instant,
    /// How long the session lives without a connection.
    grace: Duration,
}

impl Connection {
    /// With a grace there may be other connections after this one, and `out` keeps what they may have to send again.
    ///
    /// # Errors
    /// If there are no descriptors or threads left.
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

    /// It broke. Frames are kept from now on, until another one comes or the time is over.
    pub fn lose(&mut self) {
        self.close();
        self.lost_at = Instant::now();
    }

    /// How long the session still waits for a connection; none while it has one.
    pub fn patience(&self) -> Option<Duration> {
        let grace = match self.passed {
            Some(_) if self.local || self.ended => self.grace.min(HUNG_UP),
            Some(_) => self.grace,
            None => Duration::ZERO,
        };
        self.socket.is_none().then(|| grace.saturating_sub(self.lost_at.elapsed()))
    }

    /// Has a client of this machine closed its end? A process that has ended did.
    pub fn is_hung_up(&self) -> bool {
        self.socket.is_none() && (self.local || self.ended)
    }

    /// Nobody takes another connection.
    pub fn note_end_of_client(&mut self) {
        self.ended = true;
    }

    /// Attempts of the client up to this one are none: they were made at another worker.
    pub fn follows(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn is_over(&self) -> bool {
        self.patience() == Some(Duration::ZERO)
    }

    /// Takes the connection that the gateway passes, unless a later one was here already or the client cannot have
    /// received what it says: then nothing changes, and this one is closed. One for something else is returned.
    ///
    /// # Errors
    /// If there are no descriptors left.
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
        // Fits in the buffer of a socket on which nothing was sent.
        if send(&socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.lose();
            return Ok(Taken::Nothing);
        }
        self.watch.follow(socket.as_fd())?;
        self.local = is_local(&socket);
        self.socket = Some(socket);
        Ok(Taken::Resumed)
    }

    /// The watchdog has the socket too, and lets go of it when it is shut down.
    fn close(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}

/// Was this socket reached by its name? A gateway that ends TLS gives us one without a name.
fn is_local(socket: &OwnedFd) -> bool {
    let name = getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    name.is_some_and(|name| name.path().is_some())
}
