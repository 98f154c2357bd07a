//! Gates: a stream waits at a gate until the client opens it.

use std::collections::{HashMap, HashSet};

/// Limit on the gates that a client may open before their streams reach them.
pub const MOST_OPEN_GATES: usize = 1 << 20;

/// The gates of a session. The client opens them.
#[derive(Default)]
pub struct Gates {
    /// For each closed gate, by its token, the command that holds the stream.
    pub closed: HashMap<u64, u64>,
    /// The gates that were opened before their streams reached them.
    pub open: HashSet<u64>,
}
