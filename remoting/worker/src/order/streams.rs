//! Executes the commands on streams, events and host functions.

use crate::driver::{Code, Handle, Result};
use crate::order::command::StreamKind;
use crate::order::completer::MOST_IN_FLIGHT;
use crate::order::completions::Action;
use crate::order::gates::MOST_OPEN_GATES;
use crate::session::commands::{Outcome, Session};
use crate::session::objects::{Event, Stream};
use driverapi::errors::*;
use driverapi::rules::{Rule, kept};
use protocol::{EventCreate, EventDone, EventRecord, Message, StreamCreate, StreamWaitEvent};

impl Session {
    fn live_stream(&self, stream_id: u64) -> Result<&Stream> {
        self.streams
            .get(stream_id)
            .and_then(|stream| if stream.destroyed { Err(CUDA_ERROR_INVALID_HANDLE) } else { Ok(stream) })
    }

    /// Prepares a stream for an operation and returns its handle. Returns `None` if the stream is full.
    pub fn begin(&mut self, stream_id: u64) -> Result<Option<Handle>> {
        let (context, kind, stream, in_flight, seen) = {
            let stream = self.live_stream(stream_id)?;
            (stream.context, stream.kind, stream.handle, stream.in_flight, stream.zeroing_seen)
        };
        if in_flight >= MOST_IN_FLIGHT {
            return Ok(None);
        }
        self.enter(context)?;
        let c = self.contexts.get(context)?;
        let legacy = c.legacy_unmarked.then_some(c.legacy);
        // This event in the legacy stream is recorded before the work of the blocking stream. If it were recorded
        // later, it would be a barrier for that work.
        if let (StreamKind::Blocking, Some(legacy)) = (kind, legacy) {
            self.mark(legacy);
        }
        let zeroings = self.memory.zeroings_after(seen);
        if !zeroings.is_empty() && kept(Rule::Zeroing) {
            for event in zeroings {
                self.driver.stream_wait_event(stream, event)?;
            }
            self.streams.get_mut(stream_id)?.zeroing_seen = self.memory.last_zeroing;
            self.issued(stream_id);
        }
        Ok(Some(stream))
    }

    pub fn stream_create(&mut self, c: &StreamCreate) {
        if self.streams.contains(c.stream) {
            return self.late(CUDA_ERROR_INVALID_VALUE);
        }
        let stream = self.create_stream(c);
        if let Err(code) = stream {
            self.late(code);
        }
        self.streams.insert(c.stream, stream);
    }

    fn create_stream(&mut self, c: &StreamCreate) -> Result<Stream> {
        if self.streams.is_full() {
            return Err(self.out_of("streams", self.budgets.streams));
        }
        self.enter(c.context)?;
        let (_, kind) = self.topology.stream(c.stream).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let stream = self.driver.stream_create(c.flags, c.priority)?;
        self.contexts.get_mut(c.context)?.streams.push(c.stream);
        Ok(Stream::new(c.context, kind, stream, c.flags, c.priority))
    }

    /// Destroys a stream. The GPU still completes its work, and the stream is kept until that has been reported.
    pub fn stream_destroy(&mut self, id: u64) -> Result<()> {
        let stream = self.live_stream(id)?;
        if stream.kind == StreamKind::Legacy {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let (handle, context) = (stream.handle, stream.context);
        if stream.issued > 0 {
            self.mark(id);
        }
        self.close_batch(id);
        self.enter(context)?;
        self.topology.forget_stream(id);
        let stream = self.streams.get_mut(id)?;
        stream.destroyed = true;
        if stream.entries.is_empty() {
            self.forget_stream(context, id);
        }
        self.driver.stream_destroy(handle)
    }

    /// Removes a destroyed stream that has nothing left to report.
    pub fn forget_stream(&mut self, context: u64, id: u64) {
        let _ = self.streams.remove(id);
        self.forget_batches(id);
        if let Ok(context) = self.contexts.get_mut(context) {
            context.streams.retain(|stream| *stream != id);
        }
    }

    pub fn stream_synchronize(&mut self, seq: u64, stream_id: u64) -> Result<Outcome> {
        let Some(handle) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        // Even a stream without work reports an error that broke its context.
        let broken = self.driver.stream_query(handle).err().filter(|code| is_sticky(*code)).unwrap_or(0);
        // In the legacy stream an event also waits for the blocking streams, as a synchronisation does. The reply
        // reports an error.
        let _ = match self.streams.get(stream_id)?.kind {
            StreamKind::Legacy => self.entry(stream_id, seq, Action::Reply(0)),
            _ => self.entry_if_needed(stream_id, seq, Action::Reply(broken)),
        };
        Ok(Outcome::Done)
    }

    pub fn stream_query(&mut self, seq: u64, stream_id: u64) -> Result<()> {
        let (context, stream) = {
            let stream = self.live_stream(stream_id)?;
            (stream.context, stream.handle)
        };
        if self.stream_is_held(stream_id) && kept(Rule::StreamState) {
            self.reply(seq, CUDA_ERROR_NOT_READY);
            return Ok(());
        }
        self.enter(context)?;
        let state = self.driver.stream_query(stream);
        // Bytes that have already arrived are sent first.
        self.collect();
        match state {
            Ok(()) => self.publish(seq, 0, Action::Answer { of_event: false }),
            Err(code) => self.reply(seq, code),
        }
        Ok(())
    }

    pub fn stream_fence(&mut self, seq: u64, stream_id: u64, token: u64) -> Result<Outcome> {
        let Some(_) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        if let Err(code) = self.entry_if_needed(stream_id, seq, Action::Fenced { token }) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }

    pub fn event_create(&mut self, c: &EventCreate) -> Result<()> {
        if self.events.is_full() {
            return Err(self.out_of("events", self.budgets.events));
        }
        if self.events.contains(c.event) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.events.insert(c.event, Ok(Event::new(c.context, c.flags)));
        Ok(())
    }

    pub fn event_destroy(&mut self, id: u64) -> Result<()> {
        self.shared_event_destroy(id);
        let event = self.events.get_mut(id)?;
        if event.is_referred_to() {
            event.destroyed = true;
        } else {
            self.events.remove(id)?;
        }
        Ok(())
    }

    pub fn event_record(&mut self, seq: u64, stream_id: u64, c: &EventRecord) -> Result<Outcome> {
        let (context, timing, followed) = {
            let event = self.events.get(c.event)?;
            (event.context, event.timing, event.followed)
        };
        let Some(stream) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        // As in the driver, an event belongs to its context, and only streams of that context can record it.
        let recorded = match self.streams.get(stream_id)?.context == context {
            true => self.contexts.get(context)?.events.take(&self.driver, timing),
            false => Err(CUDA_ERROR_INVALID_HANDLE),
        };
        let recorded = recorded
            .and_then(|real| self.driver.event_record(real.handle, stream, c.flags).map(|()| real))
            .inspect_err(|code| self.late(*code));
        let done = Action::EventDone { event: c.event, generation: c.generation };
        match &recorded {
            Ok(real) if followed => self.entry_at(stream_id, seq, real.clone(), done),
            Ok(_) => self.issued(stream_id),
            Err(code) if followed => self.event_done(c.event, c.generation, *code),
            Err(_) => {}
        }
        self.events.get_mut(c.event)?.record(c.generation, recorded);
        Ok(Outcome::Done)
    }

    pub fn event_synchronize(&mut self, seq: u64, event: u64, generation: u64) -> Result<()> {
        match self.events.get(event)?.at(generation) {
            Some(record) => self.watch(seq, record?, Action::Reply(0)),
            None => self.synchronised(seq, 0),
        }
        Ok(())
    }

    /// Reports that a record is complete, to the client and to the sessions that share the event.
    pub fn event_done(&mut self, event: u64, generation: u64, code: Code) {
        self.shared_event_done(event, generation);
        let code = self.tell_of_event(code);
        self.out.push(EventDone::CODE, 0, &EventDone { event, generation, code }, &[]);
    }

    /// Queries a record of an event. `answered` is set if the reply was already 600 (not ready), because the driver did
    /// not have the record yet when the query arrived.
    pub fn event_query(&mut self, seq: u64, answered: bool, event: u64, generation: u64) -> Result<()> {
        let answer = match answered {
            true => Action::EventDone { event, generation },
            false => Action::Answer { of_event: true },
        };
        let Some(record) = self.events.get(event)?.at(generation) else {
            self.publish(seq, 0, answer);
            return Ok(());
        };
        let record = record?;
        self.current.set(&self.driver, record.context())?;
        match self.driver.event_query(record.handle) {
            Err(CUDA_ERROR_NOT_READY) => {
                if !answered {
                    self.reply(seq, CUDA_ERROR_NOT_READY);
                }
                self.watch(seq, record, Action::EventDone { event, generation });
            }
            state => {
                // Bytes that have already arrived are sent first.
                self.collect();
                let settles = Action::EventDone { event, generation };
                let code = state.err().unwrap_or(0);
                let code = settles.settle(&self.driver, &self.current, code, Some(&record));
                self.publish(seq, code, answer);
            }
        }
        Ok(())
    }

    pub fn stream_wait_event(&mut self, stream_id: u64, c: &StreamWaitEvent) -> Result<Outcome> {
        let record = self.events.get(c.event)?.at(c.generation).transpose()?;
        let Some(stream) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        if let Some(record) = record {
            self.driver.stream_wait_event(stream, record.handle)?;
            self.issued(stream_id);
        }
        Ok(Outcome::Done)
    }

    /// Asks the client to run a host function when the stream reaches it. The stream is held until `CallbackDone`
    /// arrives.
    pub fn host_function(&mut self, seq: u64, stream_id: u64, token: u64) -> Result<Outcome> {
        if self.callbacks.contains_key(&token) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Some(_) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        self.callbacks.insert(token, seq);
        if let Err(code) = self.entry(stream_id, seq, Action::Callback { token }) {
            self.late(code);
        }
        if kept(Rule::HostFunction) { Ok(Outcome::Held) } else { Ok(Outcome::Done) }
    }

    pub fn callback_done(&mut self, token: u64) -> Result<()> {
        let seq = self.callbacks.remove(&token).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.finish(seq);
        Ok(())
    }

    /// Holds the stream until `GateOpen` arrives. Work that the stream was given before continues.
    pub fn gate(&mut self, seq: u64, stream_id: u64, token: u64) -> Result<Outcome> {
        self.live_stream(stream_id)?;
        if self.gates.open.remove(&token) {
            return Ok(Outcome::Done);
        }
        if self.gates.closed.contains_key(&token) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.gates.closed.insert(token, seq);
        Ok(Outcome::Held)
    }

    pub fn gate_open(&mut self, token: u64) {
        if let Some(seq) = self.gates.closed.remove(&token) {
            return self.finish(seq);
        }
        self.gates.open.insert(token);
        if self.gates.open.len() > MOST_OPEN_GATES {
            self.end(CUDA_ERROR_UNKNOWN, "more gates were opened than there can be");
        }
    }
}
