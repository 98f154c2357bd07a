//! Limits on connections: their number, and the time and bytes that they may use before they are authenticated.

use super::probation::Most;
use std::time::Duration;

/// Limits on unauthenticated connections of a port. A new connection never waits: another unauthenticated one is closed
/// for it.
pub const STRANGERS: Most = Most { in_all: 256, of_peer: 64 };

/// The time in which a data connection must send a valid preface.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The time in which a call must authenticate a control connection. The API server may have to be queried.
pub const CONTROL_PATIENCE: Duration = Duration::from_secs(15);

/// Limit on the bytes that are read from an unauthenticated data connection. A TLS handshake and a preface need less.
/// Further bytes stay in the socket.
pub const RATION: usize = 64 << 10;

/// The same limit for a control connection. Its first call may contain an authority's certificates, which are up to 64
/// KiB.
pub const CONTROL_RATION: usize = 96 << 10;

/// Limits on authenticated control connections. They are high, because many programs may run at one address.
pub const CALLERS: Most = Most { in_all: 4096, of_peer: 1024 };

/// Limits on authenticated data connections: none, because leases and sessions have their own limits.
pub const TENANTS: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };
