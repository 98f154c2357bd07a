//! Limits on connections: how many, how long, and how many bytes before they are authenticated.

use super::probation::Most;
use std::time::Duration;

/// Limits on unauthenticated connections of a port. A new one never waits: another unauthenticated connection leaves
/// for it.
pub const STRANGERS: Most = Most { in_all: 256, of_peer: 64 };

/// Time limit for a data connection to send a valid preface.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Time limit for a control connection until a call authenticates it. The API server may have to be asked.
pub const CONTROL_PATIENCE: Duration = Duration::from_secs(15);

/// Limit on the bytes that are read from an unauthenticated data connection: a TLS handshake and a preface are less.
/// Further bytes wait in the network.
pub const RATION: usize = 64 << 10;

/// The same limit for a control connection: its first call may contain an authority's certificates, 64 KiB of them.
pub const CONTROL_RATION: usize = 96 << 10;

/// Limits on authenticated control connections: many programs may run at one address.
pub const CALLERS: Most = Most { in_all: 4096, of_peer: 1024 };

/// Limits on authenticated data connections: none, because leases and sessions have their own.
pub const TENANTS: Most = Most { in_all: usize::MAX, of_peer: usize::MAX };
