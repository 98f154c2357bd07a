//! Streams that wait for something elsewhere.

use std::collections::{HashMap, HashSet};

/// Gates that a client may open before their streams get there.
pub const MOST_OPEN_GATES: usize = 1 << 20;

/// What streams wait for that happens elsewhere; the client says when it has.
#[derive(Default)]
pub struct Gates {
    /// The command that holds its stream, by its token.
    pub closed: HashMap<u64, u64>,
    /// Opened before the stream got there.
    pub open: HashSet<u64>,
}
