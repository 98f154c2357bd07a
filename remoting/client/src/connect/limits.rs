//! How long an operation may take, and how often it is tried.

use std::time::Duration;

/// The limit for one call, including connecting and TLS.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A lease that has moved this often since the search began is not searched for any more.
pub const MOST_MOVES: u32 = 8;

/// How long a pod's program retries while the network does not let it in.
pub const POLICY_DELAY: Duration = Duration::from_secs(5);
