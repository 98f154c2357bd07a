//! Services of the sessions of one process for each other: appliances do not know each other, so this process carries
//! the order of streams and the bytes of copies from one to another, without holding up the program's threads.

use super::pending::{PeerSource, Pending, Source, Then, Waiter};
use super::sessions::mint;
use super::{DeviceBox, HostBox, Session};
use crate::Code;
use protocol::{BULK_CHUNK, CopyToDeviceLate, Gate, GateOpen, Message, SupplyBytes, SupplyCancel};
use std::sync::Arc;

/// Holds a stream until it is opened.
pub struct StreamGate {
    session: Arc<Session>,
    token: u64,
}

impl StreamGate {
    /// Lets the stream go on; the next call that synchronises reports the code of what it waited for.
    pub fn open(self, code: Code) {
        self.session.note_late(code);
        self.session.jobs.soon(move |session| {
            // A session that is lost holds no stream.
            let _ = session.post(0, &GateOpen { token: self.token }).and_then(|_| session.flush());
        });
    }
}

impl Session {
    /// Holds all later work of the stream.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_gate(self: &Arc<Self>, stream_id: u64) -> Result<StreamGate, Code> {
        self.jobs.start(self)?;
        let token = mint();
        self.post(stream_id, &Gate { token })?;
        Ok(StreamGate { session: Arc::clone(self), token })
    }

    /// Sends a command; `then` is called once with the code of its answer, also if the session is or gets lost.
    pub fn call_then<M: Message>(&self, stream_id: u64, message: &M, then: Then) {
        let pending = Pending::Reply(Waiter::Then(then));
        // `then` gets an error.
        let _ = self.append(M::CODE, stream_id, &[], Some(pending), true, |w| {
            w.put(message);
        });
    }

    /// Copies from the memory of another session when the stream gets there.
    ///
    /// # Errors
    /// A session's sticky error.
    pub fn copy_from_peer(self: &Arc<Self>, stream_id: u64, to: &DeviceBox, from: PeerSource) -> Result<(), Code> {
        self.jobs.start(self)?;
        from.session.jobs.start(&from.session)?;
        let message = CopyToDeviceLate { context: to.context, address: to.address, extent: to.extent.clone() };
        let source = Source::Peer(Arc::new(from), Arc::clone(self));
        self.append(
            CopyToDeviceLate::CODE,
            stream_id,
            &[],
            Some(Pending::Supply(source, Waiter::Nobody)),
            false,
            |w| {
                w.put(&message);
            },
        )?;
        self.note_work();
        Ok(())
    }

    /// Gets bytes from the session that has them, and sends them to the worker that asked for them.
    pub(super) fn fetch(
        command: u64,
        from: Arc<PeerSource>,
        to: Arc<Session>,
        offset: u64,
        len: u64,
    ) -> Result<(), String> {
        if len > BULK_CHUNK as u64 {
            return Err("the appliance asked for more bytes at once than it may".into());
        }
        let peer = Arc::clone(&from.session);
        peer.jobs.soon(move |peer| {
            let mut bytes = vec![0; len as usize];
            let place = HostBox::linear(bytes.as_mut_ptr().expose_provenance(), len);
            let (stream_id, memory) = (from.stream_id, from.memory.clone());
            let then = move |code| to.jobs.soon(move |to| to.supply_fetched(command, &from, offset, &bytes, code));
            // `then` gets an error.
            let _ = peer.ask_for_bytes(stream_id, &place, &memory, offset, Waiter::Then(Box::new(then)));
        });
        Ok(())
    }

    fn supply_fetched(&self, command: u64, from: &PeerSource, offset: u64, bytes: &[u8], code: Code) {
        let last = offset + bytes.len() as u64 == from.packed();
        let wanted = match code == 0 && !last {
            true => self.pending.lock().contains_key(&command),
            false => self.pending.lock().remove(&command).is_some(),
        };
        if !wanted {
            return;
        }
        let posted = match code {
            0 => self.post_tail(0, &SupplyBytes { command, offset }, bytes),
            code => {
                from.told.note_late(code);
                self.post(0, &SupplyCancel { command })
            }
        };
        // A session that is lost needs no bytes.
        let _ = posted.and_then(|_| self.flush());
    }
}
