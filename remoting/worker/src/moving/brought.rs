//! What a session that came from elsewhere brought. `arrival` receives it.

use crate::session::objects::RealEvent;
use std::collections::HashMap;
use std::rc::Rc;

/// All of it is empty in a session that began here.
#[derive(Default)]
pub struct Arrival {
    pub kept: Vec<u8>,
    /// Bytes of the client, of which the last are on their way from the other worker.
    pub until: Option<u64>,
    /// The last attempt of the client that the other worker knows of.
    pub epoch: u64,
    /// When records of events were complete that were made elsewhere: generation and nanoseconds since 1970, by event.
    pub times: HashMap<u64, (u64, u64)>,
    /// Of each context with such events: one that was recorded here, and when.
    pub references: HashMap<u64, (Rc<RealEvent>, u64)>,
}
