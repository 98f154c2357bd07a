//! Time limits of operations, and limits of retries.

use std::time::Duration;

/// The time limit of one call, including connecting and TLS.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of moves of a lease that one search follows.
pub const MOST_MOVES: u32 = 8;

/// The time for which a pod's program retries while the network refuses its connections.
pub const POLICY_DELAY: Duration = Duration::from_secs(5);
