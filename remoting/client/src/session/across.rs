//! Services that the sessions of one process provide for each other. Appliances do not know each other, so this process
//! carries the order of streams and the bytes of copies between them. The program's threads do not wait for this.

use super::pending::{PeerSource, Pending, Source, Then, Waiter};
use super::sessions::mint;
use super::{DeviceBox, HostBox, Session};
use crate::Code;
use protocol::{BULK_CHUNK, CopyToDeviceLate, Gate, GateOpen, Message, SupplyBytes, SupplyCancel};
use std::sync::Arc;

/// A barrier in a stream: later work of the stream waits until [`StreamGate::open`].
pub struct StreamGate {
    session: Arc<Session>,
    token: u64,
}

impl StreamGate {
    /// Lets the stream continue. `code` is the result of the work that the gate stood for: the next synchronising call
    /// reports it.
    pub fn open(self, code: Code) {
        self.session.note_late(code);
        self.session.jobs.soon(move |session| {
            // A session that is lost blocks no stream.
            let _ = session.post(0, &GateOpen { token: self.token }).and_then(|_| session.flush());
        });
    }
}

impl Session {
    /// Blocks all later work of the stream until the returned gate is opened.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_gate(self: &Arc<Self>, stream_id: u64) -> Result<StreamGate, Code> {
        self.start_jobs()?;
        let token = mint();
        self.post(stream_id, &Gate { token })?;
        Ok(StreamGate { session: Arc::clone(self), token })
    }

    pub(super) fn start_jobs(self: &Arc<Self>) -> Result<(), Code> {
        self.jobs.start(self, |session, job| session.guarded("remotegpu-jobs", || job(session)))
    }

    /// Sends a command and calls `then` once with the code of the answer. If the session is lost, `then` gets an error.
    pub fn call_then<M: Message>(&self, stream_id: u64, message: &M, then: Then) {
        let pending = Pending::Reply(Waiter::Then(then));
        // If this fails, `then` gets the error.
        let _ = self.append(M::CODE, stream_id, &[], Some(pending), true, |w| {
            w.put(message);
        });
    }

    /// Queues a copy from the memory of another session. The copy begins when the stream reaches it.
    ///
    /// # Errors
    /// The sticky error of this session, or `CUDA_ERROR_OUT_OF_MEMORY` if no thread can be started.
    pub fn copy_from_peer(self: &Arc<Self>, stream_id: u64, to: &DeviceBox, from: PeerSource) -> Result<(), Code> {
        self.start_jobs()?;
        from.session.start_jobs()?;
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

    /// Reads bytes from session `from`, and sends them to `to`, whose worker requested them. Returns at once.
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
            // If this fails, `then` gets the error.
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
        // A session that is lost needs no bytes, so the error is ignored.
        let _ = posted.and_then(|_| self.flush());
    }
}
