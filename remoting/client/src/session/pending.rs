//! Commands for which the worker will still send an answer, send bytes, or request bytes.

use super::parts::device_box::DeviceBox;
use super::parts::host_box::HostBox;
use super::parts::wait::{Reply, Slot};
use super::state::Session;
use crate::Code;
use std::sync::Arc;

/// A callback that gets the code of an answer. The reader calls it, so it must not block.
pub(super) type Then = Box<dyn FnOnce(Code) + Send>;

/// The receiver of an answer.
pub(super) enum Waiter {
    Nobody,
    Thread(Arc<Slot>),
    Then(Then),
}

impl Waiter {
    /// Notifies the waiter that the bytes of a copy have been read, or will never be read.
    pub(super) fn supplied(self, code: Code) {
        if let Waiter::Thread(slot) = self {
            slot.finish(Reply { code, tail: Vec::new() });
        }
    }
}

/// The source of the bytes that the worker requests for a copy.
#[derive(Clone)]
pub(super) enum Source {
    Host(HostBox),
    /// Device memory of another session, and the session that the bytes are sent to.
    Peer(Arc<PeerSource>, Arc<Session>),
}

/// Device memory of one session from which a copy of another session reads.
pub struct PeerSource {
    pub session: Arc<Session>,
    /// A stream of the library that only this copy uses.
    pub stream_id: u64,
    pub memory: DeviceBox,
    /// The session whose next synchronising call reports a failure.
    pub told: Arc<Session>,
    /// A guard that keeps the memory valid while the copy reads it.
    pub guard: Box<dyn Send + Sync>,
}

impl PeerSource {
    pub fn packed(&self) -> u64 {
        let extent = &self.memory.extent;
        extent.width * extent.height * extent.depth
    }
}

/// How the client handles a command's answer, or the bytes that the worker sends or requests for it.
pub(super) enum Pending {
    Reply(Waiter),
    /// The host memory into which the worker's bytes are received.
    Landing(HostBox, Waiter),
    /// The source from which requested bytes are sent.
    Supply(Source, Waiter),
}

impl Pending {
    /// Reports `code` to the callback of a command that gets no answer. Waiting threads notice a lost session
    /// themselves.
    pub(super) fn reject(self, code: Code) {
        if let Pending::Reply(Waiter::Then(then)) | Pending::Landing(_, Waiter::Then(then)) = self {
            then(code);
        }
    }
}
