//! The arrival of a session that moves to this worker. Its old worker connects like a client, recreates the session,
//! and hands it over with `Adopt`. Later frames come from the session's own client.

use crate::driver::{Code, Result};
use crate::io::frames::Payload;
use crate::memory::mapping::reserve_at;
use crate::packets::Request;
use crate::session::commands::{Counts, Session};
use crate::session::objects::Table;
use driverapi::errors::*;
use protocol::{
    Adopt, ArenaAt, ContextCreate, EventCreate, GraphBuild, Header, Message, ModuleLoad, Reader, StreamCreate, function,
};
use std::time::{SystemTime, UNIX_EPOCH};

/// Limit in bytes on the sent data that the client has not acknowledged.
pub const MOST_KEPT: usize = 128 << 20;

/// Returns the time in nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Session {
    /// Makes the session's address range at the old worker the arena of this worker, if it is free here.
    pub fn arena_at(&mut self, seq: u64, c: &ArenaAt) -> Result<()> {
        let now = self.memory.arenas.last().copied().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !self.memory.slabs.is_empty() || self.memory.arenas.len() != 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if now != (c.base, c.size) {
            self.driver.address_free(now.0, now.1)?;
            self.memory.arenas.clear();
            reserve_at(&self.driver, c.base, c.size, self.memory.granularity)?;
            self.memory.arenas.push((c.base, c.size));
        }
        self.reply(seq, 0);
        Ok(())
    }

    pub fn adopt_kept(&mut self, bytes: &[u8]) {
        if self.arrival.kept.len() + bytes.len() > MOST_KEPT {
            return self.end(CUDA_ERROR_UNKNOWN, "more bytes wait for the client than a session may bring");
        }
        self.arrival.kept.extend_from_slice(bytes);
    }

    /// Hands the session over to its own client. `unread` bytes of that client have already arrived.
    pub fn adopt(&mut self, header: &Header, payload: &Payload, unread: usize) {
        if !self.opened || self.hold.holds() || !self.is_settled() || header.seq != self.counts().seq + 1 {
            return self.end(CUDA_ERROR_UNKNOWN, "a session cannot be adopted while something is under way in it");
        }
        let adopt = match Adopt::decode(payload.bytes()) {
            Ok((adopt, _)) => adopt,
            Err(e) => return self.end(CUDA_ERROR_UNKNOWN, &format!("the session that moves here is malformed: {e}")),
        };
        let Adopt { seq, received, until, acknowledged, epoch, launches, refused, late, failed, times } = adopt;
        for object in failed {
            self.note_failed(object.kind, object.id, object.code);
        }
        self.arrival.times = times.into_iter().map(|time| (time.event, (time.generation, time.nanoseconds))).collect();
        if let Err(code) = self.make_references() {
            return self.end(code, "the clock of a session that moves here could not be set");
        }
        self.mirrors.set_applied(seq);
        self.set_counts(Counts { seq, launches, refused, late });
        let kept = std::mem::take(&mut self.arrival.kept);
        self.out.take_over(acknowledged, kept, received.saturating_add(unread as u64));
        (self.arrival.epoch, self.arrival.until) = (epoch, Some(until));
    }

    /// Reports to the appliance, once, that the whole session has arrived.
    pub fn tell_adopted(&mut self) {
        if self.arrival.until.take_if(|until| self.out.received() >= *until).is_some() {
            self.requests.push(Request::Adopted);
        }
    }

    fn note_failed(&mut self, kind: u32, id: u64, code: Code) {
        fn insert<T>(table: &mut Table<T>, id: u64, code: Code) {
            if !table.contains(id) {
                table.insert(id, Err(code));
            }
        }
        match kind {
            ContextCreate::CODE => insert(&mut self.contexts, id, code),
            StreamCreate::CODE => insert(&mut self.streams, id, code),
            EventCreate::CODE => insert(&mut self.events, id, code),
            ModuleLoad::CODE => insert(&mut self.modules, id, code),
            GraphBuild::CODE => insert(&mut self.graphs, id, code),
            _ => {}
        }
    }

    /// Records a reference event in every context that has event times from the old worker.
    fn make_references(&mut self) -> Result<()> {
        let events = self.arrival.times.keys().filter_map(|event| self.events.get(*event).ok());
        let contexts: std::collections::BTreeSet<u64> = events.map(|event| event.context).collect();
        for id in contexts {
            self.enter(id)?;
            let context = self.contexts.get(id)?;
            let event = context.events.take(&self.driver, true)?;
            self.driver.event_record(event.handle, context.internal, 0)?;
            self.driver.event_synchronize(event.handle)?;
            self.arrival.references.insert(id, (event, now()));
        }
        Ok(())
    }

    /// Returns the result of `cuEventElapsedTime` if at least one of the records was made at another worker, and
    /// otherwise `None`.
    pub fn elapsed_since_elsewhere(&self, number: u32, payload: &[u8]) -> Option<Result<f32>> {
        if number != function::CU_EVENT_ELAPSED_TIME || self.arrival.times.is_empty() {
            return None;
        }
        let mut reader = Reader::new(payload);
        let (start, end) = (reader.get().ok()?, reader.get().ok()?);
        if !self.is_from_elsewhere(start) && !self.is_from_elsewhere(end) {
            return None;
        }
        let milliseconds = |from: u64, to: u64| (to.wrapping_sub(from) as i64) as f64 / 1e6;
        Some(self.moment(start).and_then(|from| Ok(milliseconds(from, self.moment(end)?) as f32)))
    }

    fn is_from_elsewhere(&self, id: u64) -> bool {
        let generation = self.events.get(id).ok().and_then(|event| event.generation());
        generation.is_some_and(|generation| self.arrival.times.get(&id).is_some_and(|time| time.0 == generation))
    }

    /// Returns the time at which the latest record of an event was complete, in nanoseconds since 1970.
    fn moment(&self, id: u64) -> Result<u64> {
        if self.is_from_elsewhere(id) {
            return self.arrival.times.get(&id).map(|time| time.1).ok_or(CUDA_ERROR_INVALID_HANDLE);
        }
        let event = self.events.get(id)?;
        let record = event.latest().ok_or(CUDA_ERROR_INVALID_HANDLE)??;
        let (reference, at) = self.arrival.references.get(&event.context).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.enter(event.context)?;
        let since = self.driver.event_elapsed(reference.handle, record.handle)?;
        Ok(at.saturating_add_signed((f64::from(since) * 1e6) as i64))
    }
}
