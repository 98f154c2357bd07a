//! The settings of every TCP connection between a client and an appliance.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt;

/// No delay for small frames, and a silent peer is found within 15 s. The kernel's own keepalive is used rather than one
/// of ours: it answers for a process that is stopped (a debugger, `SIGSTOP`), which is not dead.
///
/// # Errors
/// If the descriptor is not a TCP socket.
pub fn configure(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(3))?;
    sockopt::set_tcp_keepcnt(&socket, 3)?;
    sockopt::set_tcp_user_timeout(&socket, 15_000)
}
