//! Accepting connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::connection::Refused;
use super::probation::{Door, Probation};
use super::{Gateway, connection, service};

/// What a port is for.
#[derive(Debug, Clone, Copy)]
pub enum Port {
    Data,
    Control,
}

/// # Errors
/// With the address named.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

pub async fn accept_for_ever(gateway: Arc<Gateway>, listener: TcpListener, port: Port, door: Arc<Door>) {
    loop {
        let (tcp, peer) = match accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory; connections that end will give some back.
                gateway.events.refused("-", format_args!("cannot accept: {error}"));
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (gateway, probation) = (gateway.clone(), Probation::new(&door, peer.ip()));
        tokio::spawn(async move {
            if let Err(reason) = serve(&gateway, tcp, peer, port, &probation).await {
                gateway.events.refused(peer, reason);
            }
        });
    }
}

/// Serves a connection for as long as it may stay.
async fn serve(
    gateway: &Arc<Gateway>,
    tcp: TcpStream,
    peer: SocketAddr,
    port: Port,
    probation: &Arc<Probation>,
) -> Result<(), Refused> {
    let served = async {
        match port {
            Port::Data => connection::serve(gateway, tcp, probation.clone()).await,
            Port::Control => service::serve(gateway, tcp, peer, probation).await,
        }
    };
    tokio::select! {
        served = served => served,
        reason = probation.over() => Err(reason.into()),
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (tcp, peer) = listener.accept().await?;
    // Fails only for a connection that is already gone, which the first read finds out.
    let _ = carrier::configure(&tcp);
    Ok((tcp, peer))
}
