//! The Unix socket of an appliance on this machine, over which copies are faster than over TCP.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use driverapi::descriptors::apart;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

use super::share::Share;

/// The folder in a pod with the sockets of its node's appliances. The device plugin mounts it.
const IN_PODS: &str = "/run/remotegpu/";

/// Connects to the appliance at `path`. Returns `None` if that fails, or if the share's endpoint is not on this
/// machine. Returns `None` also for a share with TLS or a claim, because a Unix socket does not prove the identity of
/// the peer as TLS does.
pub fn connection(share: &Share, path: &str, limit: Duration) -> Option<OwnedFd> {
    if share.ca.is_some() || share.asking.is_some() || share.claim.is_some() || !is_here(share) {
        return None;
    }
    let socket = connected(path, limit)?;
    // Another user of this machine may have created such a socket. The ticket must not be sent to that user.
    let peer = socket_peercred(&socket).ok()?.uid;
    (peer.is_root() || peer == geteuid()).then_some(socket)
}

/// Opens a connection for memory that is shared with the appliance. In a pod the secret path proves that the peer is
/// the appliance, because the appliance sent this path over TLS.
pub fn memory_connection(share: &Share, path: &str, limit: Duration) -> Option<OwnedFd> {
    match &share.claim {
        Some(_) => path.starts_with(IN_PODS).then(|| connected(path, limit)).flatten(),
        None => connection(share, path, limit),
    }
}

fn connected(path: &str, limit: Duration) -> Option<OwnedFd> {
    if path.is_empty() {
        return None;
    }
    let made = || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = apart(made).ok()?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit)).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    set_socket_timeout(&socket, Timeout::Send, None).ok()?;
    Some(socket)
}

/// Returns whether the endpoint's host is `localhost`, 127.0.0.1 or ::1. A local proxy would have another loopback
/// address.
fn is_here(share: &Share) -> bool {
    let host = share.address().map(|(host, _)| host);
    host.is_some_and(|host| host == "localhost" || matches!(host.parse(), Ok(address) if is_first_loopback(address)))
}

fn is_first_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address == std::net::Ipv4Addr::LOCALHOST,
        IpAddr::V6(address) => address == std::net::Ipv6Addr::LOCALHOST,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::Ca;
    use super::*;

    fn share(endpoint: &str) -> Share {
        Share {
            endpoint: endpoint.into(),
            lease_id: String::new(),
            lease_secret: String::new(),
            ca: None,
            server_name: None,
            asking: None,
            claim: None,
        }
    }

    #[test]
    fn only_an_appliance_here_without_tls_is_reached_by_its_socket() {
        let path = std::env::temp_dir().join(format!("remotegpu-local-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let name = path.display().to_string();
        let limit = Duration::from_secs(5);
        for here in ["127.0.0.1:7070", "[::1]:7070", "localhost:7070"] {
            assert!(connection(&share(here), &name, limit).is_some(), "{here}");
            listener.accept().unwrap();
        }
        for elsewhere in ["127.0.0.2:7070", "10.0.0.1:7070", "gpu:7070"] {
            assert!(connection(&share(elsewhere), &name, limit).is_none(), "{elsewhere}");
        }
        let with_tls = Share { ca: Some(Ca::File("ca.pem".into())), ..share("127.0.0.1:7070") };
        assert!(connection(&with_tls, &name, limit).is_none());
        drop(listener);
        assert!(connection(&share("127.0.0.1:7070"), &name, limit).is_none(), "nobody listens");
        std::fs::remove_file(&path).unwrap();
        assert!(connection(&share("127.0.0.1:7070"), &name, limit).is_none(), "no such file");
        assert!(connection(&share("127.0.0.1:7070"), "", limit).is_none(), "an older appliance names none");
    }
}
