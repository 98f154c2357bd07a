//! State that a session brings from another worker. `arrival` receives it.

use crate::driver::events::RealEvent;
use std::collections::HashMap;
use std::rc::Rc;

/// State from the other worker; empty in a session that began here.
#[derive(Default)]
pub struct Arrival {
    pub kept: Vec<u8>,
    /// Number of the client's bytes, of which the last are on their way from the other worker.
    pub until: Option<u64>,
    /// The client's last attempt to connect that the other worker knows of.
    pub epoch: u64,
    /// Completion times of event records that were made elsewhere: generation and nanoseconds since 1970, by event.
    pub times: HashMap<u64, (u64, u64)>,
    /// An event that was recorded here, and when, for each context with such events.
    pub references: HashMap<u64, (Rc<RealEvent>, u64)>,
}
