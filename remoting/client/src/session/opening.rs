//! The first frame of a session, which the client sends before the appliance has answered.

use crate::program::identity;
use protocol::{Header, Message, Open, Writer, table_hash};

/// The opening frame. The client sends it directly after the preface. The appliance does not read it but forwards it,
/// so the worker gets it one round trip earlier.
pub struct Opening {
    pub(super) wire: u32,
    pub(super) frame: Vec<u8>,
}

impl Opening {
    pub(super) const NUMBER: u64 = 1;

    /// Returns the opening of a session with version `wire` of the protocol.
    #[must_use]
    pub fn new(wire: u32) -> Opening {
        let mut payload = Writer::new();
        payload.put(&Open {
            wire_version: wire,
            table_hash: table_hash(wire).unwrap_or_default(),
            client_pid: std::process::id(),
            client_name: identity::name(),
        });
        let (len, code, seq) = (payload.bytes.len() as u32, Open::CODE, Opening::NUMBER);
        let header = Header { len, code, seq, ..Header::default() };
        Opening { wire, frame: [&header.encode()[..], &payload.bytes].concat() }
    }

    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }
}
