//! The carrier of the host's changes to one context's device: a stream that sends them, and a list of the changes that
//! the device may not have yet.

use super::super::changes::Unconfirmed;
use crate::Code;
use crate::devices::context::{LEAST_PRIORITY, Live};
use crate::session::mint;
use driverapi::constants::{CU_EVENT_DISABLE_TIMING, CU_EVENT_WAIT_DEFAULT, CU_STREAM_NON_BLOCKING};
use driverapi::rules::{Rule, kept};
use protocol::{
    BULK_CHUNK, EventCreate, EventRecord, MIRROR_RUNS, MirrorChanges, MirrorPart, MirrorRun, StreamWaitEvent,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A stream of the library that sends changes of mirrors to one context.
pub struct Carrier {
    pub live: Arc<Live>,
    pub stream_id: u64,
    /// An event that is recorded after the changes. Other streams wait for it.
    event: u64,
    generation: u64,
    seen: HashMap<u64, u64>,
    /// The newest command at the last fetch, when all earlier work was complete. Only later commands can have written
    /// on the device since.
    pub fetched: u64,
    /// The changes that the worker has not confirmed yet.
    pub unconfirmed: Unconfirmed,
}

/// Changes of several mirrors that are being collected for one command.
#[derive(Default)]
pub struct Changes {
    parts: Vec<MirrorPart>,
    bytes: Vec<u8>,
    /// The same changes, as ranges of the program's memory.
    sent: Vec<(u64, Range<usize>)>,
}

impl Carrier {
    pub fn new(live: &Arc<Live>) -> Result<Carrier, Code> {
        let stream_id = live.start_stream(CU_STREAM_NON_BLOCKING, LEAST_PRIORITY)?;
        live.session.own_stream(stream_id);
        let event = mint();
        live.session.post(0, &EventCreate { event, context: live.id, flags: CU_EVENT_DISABLE_TIMING })?;
        let (live, seen) = (Arc::clone(live), HashMap::new());
        Ok(Carrier { live, stream_id, event, generation: 0, seen, fetched: 0, unconfirmed: Unconfirmed::default() })
    }

    /// Records that changes were sent. Streams wait for them before they do more work.
    pub fn sent(&mut self) -> Result<(), Code> {
        self.generation += 1;
        let record = EventRecord { event: self.event, generation: self.generation, flags: 0 };
        self.live.session.post(self.stream_id, &record).map(drop)
    }

    /// Makes later work of the stream wait for the changes that were sent.
    pub fn hold(&mut self, stream_id: u64) -> Result<(), Code> {
        let Carrier { event, generation, .. } = *self;
        if self.seen.get(&stream_id).copied().unwrap_or(0) < generation && kept(Rule::MirrorHold) {
            let wait = StreamWaitEvent { event, generation, flags: CU_EVENT_WAIT_DEFAULT };
            self.live.session.post(stream_id, &wait)?;
            self.seen.insert(stream_id, generation);
        }
        Ok(())
    }

    /// Adds a change of one part of a mirror. The part begins at position `at` of the memory, whose bytes are `shadow`.
    /// Sends the collected changes when there are enough for a command.
    pub fn add(
        &mut self,
        changes: &mut Changes,
        mirror: u64,
        at: usize,
        shadow: &[u8],
        run: &Range<usize>,
    ) -> Result<(), Code> {
        let most = if kept(Rule::MirrorWindow) { BULK_CHUNK } else { shadow.len() };
        for start in run.clone().step_by(most) {
            let run = start..(start + most).min(run.end);
            if changes.sent.len() == MIRROR_RUNS || changes.bytes.len() + run.len() > most {
                self.send(changes)?;
            }
            changes.bytes.extend_from_slice(&shadow[run.clone()]);
            let piece = MirrorRun { at: (run.start - at) as u64, len: run.len() as u32 };
            match changes.parts.last_mut().filter(|part| part.mirror == mirror) {
                Some(part) => part.runs.push(piece),
                None => changes.parts.push(MirrorPart { mirror, runs: vec![piece] }),
            }
            changes.sent.push((mirror, run));
        }
        Ok(())
    }

    /// Sends the collected changes.
    pub fn send(&mut self, changes: &mut Changes) -> Result<(), Code> {
        let Changes { parts, bytes, sent } = std::mem::take(changes);
        if sent.is_empty() {
            return Ok(());
        }
        let session = &self.live.session;
        session.reserve_window_of_library(bytes.len() as u64)?;
        let command = session.post_tail(self.stream_id, &MirrorChanges { parts }, &bytes)?;
        session.note_work();
        self.unconfirmed.add(command, sent);
        Ok(())
    }
}
