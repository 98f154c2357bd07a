//! The settings of every TCP connection between a client and an appliance.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt;

/// The time without an acknowledgement after which a peer counts as lost, in milliseconds. A deleted pod closes no
/// connections, and its address belongs to no machine afterwards.
const SILENCE_MS: u32 = 8_000;

/// The number of unanswered probes of a closed window after which the peer counts as silent.
const MOST_PROBES: u8 = 3;

/// Sets the options of a socket: no delay for small frames, and detection of a silent peer within 10 s. The kernel's
/// keepalive is used because the kernel also answers for a stopped process (a debugger, `SIGSTOP`), which is not dead.
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

/// Keeps the connection to a peer that answers but does not read. Call it every few seconds while bytes may be waiting.
/// Returns true while the peer does not read.
///
/// The kernel's timeout for unacknowledged bytes would also end a connection to a stopped program, for example in the
/// middle of a copy. This function removes the timeout while all sent bytes are acknowledged, more bytes are waiting,
/// and the peer's kernel answers the probes of its closed window. It ignores a socket that is not TCP.
pub fn follow_window(socket: impl AsFd) -> bool {
    let Some(state) = tcp_state(socket.as_fd()) else { return false };
    let stopped = state.unacknowledged == 0 && state.unsent > 0 && state.unanswered_probes < MOST_PROBES;
    // This fails only for a broken connection, whose next use will fail, too.
    let _ = sockopt::set_tcp_user_timeout(&socket, if stopped { 0 } else { SILENCE_MS });
    stopped
}

/// Runs `work` on a connection, and calls `follow_window` every second meanwhile.
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
    /// The number of sent segments that are not acknowledged.
    unacknowledged: u32,
    /// The number of bytes that are not sent yet.
    unsent: u32,
    unanswered_probes: u8,
}

/// Reads the kernel's `struct tcp_info`, whose fields never move. A kernel without one of the fields (before 4.6)
/// leaves it 0.
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
