//! Accepting connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::probation::Probation;
use super::{Gateway, MAX_UNKNOWN, connection};

/// # Errors
/// With the address named.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

pub async fn accept_for_ever(gateway: Arc<Gateway>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MAX_UNKNOWN));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (tcp, peer) = match accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory; connections that end will give some back.
                gateway.events.refused("-", format_args!("cannot accept: {error}"));
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (gateway, probation) = (gateway.clone(), Arc::new(Probation::new(place)));
        tokio::spawn(async move {
            if let Err(reason) = connection::serve(&gateway, tcp, probation).await {
                gateway.events.refused(peer, reason);
            }
        });
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, std::net::SocketAddr)> {
    let (tcp, peer) = listener.accept().await?;
    // Fails only for a connection that is already gone, which the first read finds out.
    let _ = carrier::configure(&tcp);
    Ok((tcp, peer))
}
