//! Binds the gateway's ports and accepts connections.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use protocol::MEMORY;

use super::admission::preface_follows;
use super::connection;
use super::control_port::service;
use super::opening::{Refused, Speaks, first_bytes, refused, speaks};
use super::state::Gateway;
use super::strangers::probation::{Door, Probation};

/// The purpose of a port.
#[derive(Debug, Clone, Copy)]
pub enum Port {
    Data,
    Control,
}

/// Listens on a TCP address, `HOST:PORT`.
///
/// # Errors
/// The message names the address.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

const AGAIN: Duration = Duration::from_secs(2);

fn bind_local(path: &Path) -> io::Result<UnixListener> {
    // An earlier gateway may have left the socket.
    let _ = std::fs::remove_file(path);
    let bound = UnixListener::bind(path);
    // Any process that can reach the socket may connect, under any user. It has to authenticate like every other peer.
    let open = |listener| std::fs::set_permissions(path, Permissions::from_mode(0o666)).map(|()| listener);
    bound.and_then(open)
}

/// Creates the listener as soon as possible: another program of the machine may create the folder later.
async fn listen_local(path: &Path) -> UnixListener {
    let mut told = false;
    loop {
        match bind_local(path) {
            Ok(listener) => return listener,
            Err(error) if !told => eprintln!(
                "remotegpu-gateway: cannot listen on {} yet ({error}), so copies of programs on this machine take the \
                 network; tried again every {} s",
                path.display(),
                AGAIN.as_secs()
            ),
            Err(_) => {}
        }
        told = true;
        tokio::time::sleep(AGAIN).await;
    }
}

/// Accepts clients on this machine in an endless loop, as [`accept_for_ever`] does at the data port. If the data port
/// requires TLS, only connections for shared memory may come without TLS.
pub async fn accept_local(gateway: Arc<Gateway>, path: PathBuf, door: Arc<Door>) {
    let listener = listen_local(&path).await;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                cannot_accept(&gateway, &error).await;
                continue;
            }
        };
        let (gateway, probation) = (gateway.clone(), Probation::new(&door, IpAddr::V4(Ipv4Addr::LOCALHOST)));
        tokio::spawn(async move {
            let served = tokio::select! {
                served = serve_local(&gateway, stream, &probation) => served,
                reason = probation.over() => Err(reason.into()),
            };
            if let Err(reason) = served {
                gateway.events.refused("the Unix socket", reason);
            }
        });
    }
}

async fn serve_local(gateway: &Gateway, mut stream: UnixStream, probation: &Probation) -> Result<(), Refused> {
    let Some(head) = first_bytes(&mut stream).await? else { return Ok(()) };
    if speaks(head) != Speaks::Preface {
        return refused("speaks something else than frames");
    }
    if gateway.tls.is_some() && head != *MEMORY {
        return refused("speaks plaintext to an appliance that demands TLS");
    }
    preface_follows(gateway, head, stream, probation).await.map(drop)
}

/// Reports the failure of an accept and waits. Descriptors or memory have run out, and ending connections will free
/// some.
async fn cannot_accept(gateway: &Gateway, error: &io::Error) {
    gateway.events.refused("-", format_args!("cannot accept: {error}"));
    tokio::time::sleep(Duration::from_millis(50)).await;
}

pub async fn accept_for_ever(gateway: Arc<Gateway>, listener: TcpListener, port: Port, door: Arc<Door>) {
    loop {
        let (tcp, peer) = match accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                cannot_accept(&gateway, &error).await;
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

/// Serves a connection until it ends or exceeds its limits.
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
    // This fails only if the connection is already broken, and then the first read fails too.
    let _ = carrier::configure(&tcp);
    Ok((tcp, peer))
}
