//! The state that a moved session received from its old worker. `arrival` fills it.

use crate::driver::events::RealEvent;
use std::collections::HashMap;
use std::rc::Rc;

/// The state from the old worker. It is empty if the session did not move.
#[derive(Default)]
pub struct Arrival {
    pub kept: Vec<u8>,
    /// The number of the client's bytes after which the session is complete. The last of these bytes are still coming
    /// from the old worker.
    pub until: Option<u64>,
    /// The epoch of the client's last attempt to connect that the old worker knows of.
    pub epoch: u64,
    /// The completion times of event records that were made elsewhere: the generation, and nanoseconds since 1970, by
    /// event.
    pub times: HashMap<u64, (u64, u64)>,
    /// For each context with such events, a reference event that was recorded in this worker, and its time.
    pub references: HashMap<u64, (Rc<RealEvent>, u64)>,
}
