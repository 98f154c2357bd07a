//! The beginning of a connection. Its first bytes show the protocol, and the TLS handshake happens here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::guard::defences::{Defence, stands};

use super::rewind::Rewind;
use super::state::Gateway;
use super::strangers::probation::Probation;
use super::strangers::ration::Rationed;

/// The protocol that the first four bytes show. No further bytes are read, because they belong to the session.
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
        // The header of a TLS handshake record, version 3.x.
        [0x16, 3, _, _] => Speaks::Tls,
        _ => Speaks::Unknown,
    }
}

/// The reason why a connection was closed, for the log.
#[derive(Debug)]
pub struct Refused(pub String);

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

/// The beginning of a connection: its protocol and its first bytes, decrypted if the connection uses TLS.
pub struct First {
    pub head: [u8; 4],
    pub carrier: Carrier,
    pub stream: Stream,
    /// A second descriptor of the connection, to change its settings.
    pub socket: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// The frames of a session, after a preface.
    Frames,
    /// gRPC.
    Http2,
}

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<Rewind<Rationed<TcpStream>>>>),
}

/// Reads the first bytes of a connection, after a TLS handshake if there is one. It reads at most `ration` bytes before
/// the connection is authenticated. Returns `None` if the peer closed the connection without sending a byte. Such a
/// peer only checks whether the port is open (`remotegpu doctor`, a load balancer).
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

pub async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<[u8; 4]>, Refused> {
    let mut head = [0; 4];
    match stream.read(&mut head[..1]).await {
        // Many probes close with a reset, or without the closing message of TLS.
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) => {}
    }
    let read = stream.read_exact(&mut head[1..]).await;
    read.map(|_| Some(head)).map_err(|_| Refused("closed before its preface".into()))
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
