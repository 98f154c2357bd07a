//! Gates: streams wait at them for something that happens elsewhere.

use std::collections::{HashMap, HashSet};

/// Limit on the gates that a client may open before their streams reach them.
pub const MOST_OPEN_GATES: usize = 1 << 20;

/// The gates of a session; the client says when one opens.
#[derive(Default)]
pub struct Gates {
    /// The command that holds its stream, by the gate's token.
    pub closed: HashMap<u64, u64>,
    /// Gates that were opened before their stream reached them.
    pub open: HashSet<u64>,
}
