//! Serves the control port. TLS ends in the gateway. The appliance's control service receives each connection on its
//! Unix socket, and reports when a call has authenticated the connection.

use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::calls::FewCalls;
use super::connections::Entry;
use crate::gateway::opening::{Carrier, First, Refused, Stream, first};
use crate::gateway::rewind::Rewind;
use crate::gateway::state::Gateway;
use crate::gateway::strangers::limits::RATION;
use crate::gateway::strangers::probation::Probation;
use crate::gateway::strangers::ration::Rationed;

pub async fn serve(
    gateway: &Gateway,
    tcp: TcpStream,
    peer: SocketAddr,
    probation: &Arc<Probation>,
) -> Result<(), Refused> {
    let Some(First { head, carrier, stream, socket }) = first(gateway, tcp, RATION, probation).await? else {
        return Ok(());
    };
    if carrier == Carrier::Frames {
        return Err("speaks to the control port as to the data port".to_owned().into());
    }
    match stream {
        Stream::Plain(tcp) => {
            let tcp = Rationed::new(tcp, RATION, probation);
            pass_on(gateway, socket, Rewind::new(head, tcp), peer, probation).await
        }
        Stream::Tls(tls) => pass_on(gateway, socket, Rewind::new(head, tls), peer, probation).await,
    }
}

/// Passes the calls of a connection to the service, and tells the service that they come from `peer`.
pub async fn pass_on(
    gateway: &Gateway,
    socket: OwnedFd,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: impl Display,
    probation: &Arc<Probation>,
) -> Result<(), Refused> {
    let entry = Entry::new(&gateway.connections, probation);
    let service = gateway.connections.connect(entry.1, peer)?;
    Ok(carrier::followed(socket, carrier::pump(FewCalls::new(stream, probation), service)).await?)
}
