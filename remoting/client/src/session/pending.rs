//! Commands whose answers, or whose bytes, are still to come.

use super::parts::device_box::DeviceBox;
use super::parts::host_box::HostBox;
use super::parts::wait::{Reply, Slot};
use super::state::Session;
use crate::Code;
use std::sync::Arc;

/// A callback for the code of an answer that no thread waits for. The reader calls it: it must not block.
pub(super) type Then = Box<dyn FnOnce(Code) + Send>;

/// The receiver of an answer.
pub(super) enum Waiter {
    Nobody,
    Thread(Arc<Slot>),
    Then(Then),
}

impl Waiter {
    /// Notifies the waiter: the bytes of a copy have been read, or will not be.
    pub(super) fn supplied(self, code: Code) {
        if let Waiter::Thread(slot) = self {
            slot.finish(Reply { code, tail: Vec::new() });
        }
    }
}

/// The source of bytes of a copy that the worker asks for.
#[derive(Clone)]
pub(super) enum Source {
    Host(HostBox),
    /// Another session; they go to this one.
    Peer(Arc<PeerSource>, Arc<Session>),
}

/// Device memory of one session that a late copy of another session reads.
pub struct PeerSource {
    pub session: Arc<Session>,
    /// A stream of the library's own, which only this copy uses.
    pub stream_id: u64,
    pub memory: DeviceBox,
    /// The session whose streams get a failure.
    pub told: Arc<Session>,
    /// Kept as long as the memory is read.
    pub guard: Box<dyn Send + Sync>,
}

impl PeerSource {
    pub fn packed(&self) -> u64 {
        let extent = &self.memory.extent;
        extent.width * extent.height * extent.depth
    }
}

/// The use of a command's answer, or of its pushes.
pub(super) enum Pending {
    Reply(Waiter),
    /// Bytes land here.
    Landing(HostBox, Waiter),
    /// Requested bytes are read from here.
    Supply(Source, Waiter),
}

impl Pending {
    /// Rejects a command that gets no answer. Threads that wait notice that by themselves.
    pub(super) fn reject(self, code: Code) {
        if let Pending::Reply(Waiter::Then(then)) | Pending::Landing(_, Waiter::Then(then)) = self {
            then(code);
        }
    }
}
