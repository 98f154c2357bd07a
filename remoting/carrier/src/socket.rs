//! The settings of every TCP connection between a client and an appliance.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt;

/// A peer that acknowledges nothing for so long is gone. A deleted pod leaves without a word: its address belongs to no
/// machine from then on.
const SILENCE_MS: u32 = 8_000;

/// Questions to a closed window without an answer, after which the peer counts as silent.
const MOST_PROBES: u8 = 3;

/// No delay for small frames, and a silent peer is found within 10 s. The kernel's own keepalive is used rather than one
/// of ours: it answers for a process that is stopped (a debugger, `SIGSTOP`), which is not dead.
///
/// # Errors
/// If the descriptor is not a TCP socket.
pub fn configure(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(3))?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(&socket, 5)?;
    sockopt::set_tcp_user_timeout(&socket, SILENCE_MS)
}

/// Keeps a peer that answers but does not read, to be called every few seconds while bytes may be waiting to be sent. True
/// as long as it is such a peer.
///
/// The kernel's timeout for unacknowledged bytes also ends connections whose other end only does not read: a program that
/// was stopped in the middle of a copy. So it is lifted while all that was sent is acknowledged, more is waiting, and the
/// peer's kernel answers for the closed window. A socket that is not TCP is left alone.
pub fn follow_window(socket: impl AsFd) -> bool {
    let Some(state) = tcp_state(socket.as_fd()) else { return false };
    let stopped = state.unacknowledged == 0 && state.unsent > 0 && state.unanswered_probes < MOST_PROBES;
    // Fails only for a connection that is gone, and its next use will fail.
    let _ = sockopt::set_tcp_user_timeout(&socket, if stopped { 0 } else { SILENCE_MS });
    stopped
}

/// Does `work` on a connection, and meanwhile gives time to a peer that does not read.
pub async fn followed<T>(socket: OwnedFd, work: impl Future<Output = T>) -> T {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = clock.tick() => follow_window(&socket),
        };
    }
}

struct TcpState {
    /// Segments that were sent.
    unacknowledged: u32,
    /// Bytes.
    unsent: u32,
    unanswered_probes: u8,
}

/// From the kernel's `struct tcp_info`, whose fields never move; a kernel older than one of them (4.6) leaves it 0.
fn tcp_state(socket: BorrowedFd<'_>) -> Option<TcpState> {
    const PROBES: usize = 3;
    const UNACKNOWLEDGED: usize = 24;
    const UNSENT: usize = 144;
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of `info`.
    let result = unsafe {
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &mut len)
    };
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    (result == 0).then(|| TcpState {
        unacknowledged: word(UNACKNOWLEDGED),
        unsent: word(UNSENT),
        unanswered_probes: info[PROBES],
    })
}
