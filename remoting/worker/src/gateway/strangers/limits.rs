//! Limits on connections: their number, and the time and bytes that they may use before they are authenticated.

use super::probation::Most;
use std::time::Duration;

/// Limits on unauthenticated connections of a port. A new connection never waits: another unauthenticated one is closed
/// for it.
pub const STRANGERS: Most = Most { in_all: 192, of_peer: 64 };

/// The time in which a connection must send what authenticates it: a valid preface, or a whole call.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Limit on the time that the appliance has for a call that was sent in time, and the time that it then has to report
/// that the call has authenticated the connection. The API server may have to be queried.
pub const ANSWER: Duration = Duration::from_secs(10);
pub const REPORT: Duration = Duration::from_secs(1);

/// Limit on the bytes that are read from an unauthenticated connection. A TLS handshake with a preface needs less, and
/// so does one with a call that has an authority's certificates. Further bytes stay in the socket.
pub const RATION: usize = 64 << 10;

/// Limit on the open calls of an unauthenticated control connection. Further calls wait until these are answered.
pub const MOST_CALLS: usize = 4;

/// Limits on authenticated control connections. They are high, because many programs may run at one address.
pub const CALLERS: Most = Most { in_all: 4096, of_peer: 1024 };

/// Limits on authenticated data connections: none, because leases and sessions have their own limits.
pub const TENANTS: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };
