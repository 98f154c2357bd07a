//! A session's turns at the GPUs of its lease, and the socket to the gateway on which it requests them.

use super::places::Places;
use crate::packets::{Said, Told};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const PACKET: usize = 256;

/// The turns of a session, and the socket on which they are given.
#[derive(Debug)]
pub struct Turns {
    socket: OwnedFd,
    pub places: Places,
}

impl Turns {
    pub fn new(socket: OwnedFd) -> Self {
        Turns { socket, places: Places::default() }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn patience(&self) -> Option<Duration> {
        self.places.patience(Instant::now())
    }

    /// Lets all waiting launches try again.
    pub fn retry(&mut self) {
        self.places.retry();
    }

    /// Reads the gateway's messages. Returns whether launches may be possible that were not possible before.
    ///
    /// # Errors
    /// Fails if the gateway has closed the socket, or sent an invalid packet.
    pub fn hear(&mut self) -> io::Result<bool> {
        let (mut packet, mut any) = ([0; PACKET], false);
        loop {
            match recv(&self.socket, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => any |= self.places.hear(serde_json::from_slice::<Told>(&packet[..count])?),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(any),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends the queued messages to the gateway.
    ///
    /// # Errors
    /// Fails if the gateway has closed the socket, or does not read.
    pub fn speak(&mut self) -> io::Result<()> {
        for said in std::mem::take(&mut self.places.said) {
            send(&self.socket, &serde_json::to_vec::<Said>(&said)?, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        }
        Ok(())
    }
}
