//! Completions: reports to the client, or acts, when work of the GPU is complete.
//!
//! The worker never waits in the driver. Each stream has a queue of entries, some of them with an event. An entry is
//! done when its event is complete. An entry without an event is done when all entries before it are done. Events are
//! only queried, never waited for.

use crate::driver::Code;
use crate::driver::events::RealEvent;
use crate::memory::mirrors::Told;
use crate::order::completions::{Action, Entry, Join, Then, Watch, state};
use crate::session::commands::Session;
use driverapi::errors::*;
use protocol::{Callback, Consumed, Fenced, HostBytes, Message};
use std::rc::Rc;

/// The number of operations in a stream after which a marker is added, so that the remaining work of the stream is
/// known.
const MARKER_EVERY: u32 = 64;
/// Limit on the operations in a stream. The driver blocks at about 1,024, so the worker holds the stream before that.
pub const MOST_IN_FLIGHT: u32 = 900;
/// Limit on the client's pending waits for single events.
const MOST_WATCHES: usize = 1 << 16;
/// Limit on the pending entries of one stream.
const MOST_ENTRIES: usize = 1 << 17;

struct Done {
    seq: u64,
    code: Code,
    action: Action,
}

impl Session {
    /// Counts an operation that was given to a stream.
    pub fn issued(&mut self, stream_id: u64) {
        let Ok(stream) = self.streams.get_mut(stream_id) else { return };
        stream.issued += 1;
        stream.in_flight += 1;
        self.mirrors.note_work(stream_id);
        let (issued, context, kind) = (stream.issued, stream.context, stream.kind);
        if kind == crate::order::command::StreamKind::Legacy
            && let Ok(context) = self.contexts.get_mut(context)
        {
            context.legacy_unmarked = true;
        }
        if issued >= MARKER_EVERY {
            self.mark(stream_id);
        }
    }

    /// Adds an entry that is done when all work given to the stream so far is complete.
    pub fn mark(&mut self, stream_id: u64) {
        // After an error, the next entry also covers these operations.
        if let Err(code) = self.entry(stream_id, 0, Action::Marker) {
            self.late(code);
        }
    }

    /// Records an event in the stream, and runs `action` when the event is complete. Returns an error of the driver;
    /// then `action` runs when the earlier entries are done.
    pub fn entry(&mut self, stream_id: u64, seq: u64, action: Action) -> Result<(), Code> {
        self.enter(self.streams.get(stream_id)?.context)?;
        let stream = self.streams.get(stream_id)?;
        let (handle, context) = (stream.handle, self.contexts.get(stream.context)?);
        let event = context.events.take(&self.driver, false);
        let event = event.and_then(|e| self.driver.event_record(e.handle, handle, 0).map(|()| e));
        match event {
            Ok(event) => {
                self.entry_at(stream_id, seq, event, action);
                Ok(())
            }
            Err(code) => {
                let action = match action {
                    Action::Reply(0) | Action::Shared { .. } | Action::Striped { .. } => Action::Reply(code),
                    Action::HostBytes { buffer, .. } => Action::Consumed { bytes: 0, _buffer: buffer },
                    Action::MirrorsRead { window, buffer, .. } => Action::MirrorsRead { window, buffer, failed: code },
                    action => action,
                };
                self.push_entry(stream_id, seq, None, 0, action);
                Err(code)
            }
        }
    }

    /// Runs `action` when `event` is complete. The event must be the last operation that was given to the stream.
    pub fn entry_at(&mut self, stream_id: u64, seq: u64, event: Rc<RealEvent>, action: Action) {
        let Ok(stream) = self.streams.get_mut(stream_id) else { return };
        let operations = std::mem::take(&mut stream.issued) + 1;
        stream.in_flight += 1;
        if stream.kind == crate::order::command::StreamKind::Legacy
            && let Ok(context) = self.contexts.get_mut(stream.context)
        {
            context.legacy_unmarked = false;
        }
        self.push_entry(stream_id, seq, Some(event), operations, action);
    }

    /// Runs `action` when all earlier entries of the stream are done.
    pub fn piggyback(&mut self, stream_id: u64, seq: u64, action: Action) {
        self.push_entry(stream_id, seq, None, 0, action);
    }

    fn push_entry(&mut self, stream_id: u64, seq: u64, event: Option<Rc<RealEvent>>, operations: u32, action: Action) {
        let Ok(stream) = self.streams.get_mut(stream_id) else { return };
        self.completions.bytes_pending += usize::from(matches!(action, Action::HostBytes { .. }));
        self.completions.news_pending += usize::from(action.is_news());
        stream.entries.push_back(Entry { seq, event, operations, action });
        let too_many = stream.entries.len() > MOST_ENTRIES;
        self.completions.active.insert(stream_id);
        if too_many {
            self.end(CUDA_ERROR_UNKNOWN, "too many completions of a stream are waited for");
        }
    }

    /// Like `entry`, but without a new event if the stream was given nothing since the last event.
    pub fn entry_if_needed(&mut self, stream_id: u64, seq: u64, action: Action) -> Result<(), Code> {
        if self.streams.get(stream_id)?.issued > 0 {
            return self.entry(stream_id, seq, action);
        }
        self.piggyback(stream_id, seq, action);
        Ok(())
    }

    /// Runs `action` when this record of an event is complete, without regard to other work of the stream.
    pub fn watch(&mut self, seq: u64, event: Rc<RealEvent>, action: Action) {
        if self.completions.watches.len() >= MOST_WATCHES {
            return self.end(CUDA_ERROR_UNKNOWN, "too many events are waited for");
        }
        self.completions.news_pending += usize::from(action.is_news());
        self.completions.watches.push(Watch { seq, event, action });
    }

    /// Runs `then` when all work given to these streams of a context so far is complete.
    pub fn join(&mut self, context: u64, streams: &[u64], seq: u64, then: Then) {
        let id = self.completions.next_join;
        self.completions.next_join += 1;
        let reply = matches!(then, Then::Reply);
        let busy: Vec<u64> = streams.iter().copied().filter(|id| self.is_busy(*id)).collect();
        // One part belongs to this function, so that the join cannot complete before all other parts exist.
        let join = Join { seq, remaining: busy.len() + 1, code: 0, then };
        self.completions.joins.insert(id, join);
        let mut failed = 0;
        if reply && busy.is_empty() && self.enter(context).is_ok() {
            failed = self.driver.context_synchronize().err().unwrap_or(0);
        }
        for stream_id in busy {
            if let Err(code) = self.entry_if_needed(stream_id, seq, Action::Part { join: id }) {
                failed = code;
            }
        }
        self.part_done(id, failed);
    }

    /// Whether the stream has entries, or work that is not known to be complete.
    pub fn is_busy(&self, stream_id: u64) -> bool {
        self.streams.get(stream_id).is_ok_and(|stream| stream.in_flight > 0 || !stream.entries.is_empty())
    }

    /// Reports everything that the GPU has completed to the client. Returns whether there was anything.
    pub fn collect(&mut self) -> bool {
        if !self.completions.is_pending() {
            return false;
        }
        let mut done = Vec::new();
        self.take_watches(&mut done);
        self.take_entries(&mut done);
        // A program that sees a completion must also see the bytes that arrived, and the events that were complete,
        // before it. Therefore, after a completion was found, both are checked again until a check finds no further
        // completion.
        let mut looked = 0;
        while self.completions.news_pending > 0 && done[looked..].iter().any(|d| d.action.is_visible()) {
            looked = done.len();
            self.take_watches(&mut done);
            self.take_entries(&mut done);
        }
        done.sort_by_key(|d| d.seq);
        let any = !done.is_empty();
        let mut consumed = 0;
        for d in done {
            match d.action {
                Action::Consumed { bytes, .. } => {
                    consumed += bytes;
                    if d.code != 0 {
                        self.late(d.code);
                    }
                }
                action => self.publish(d.seq, d.code, action),
            }
        }
        if consumed > 0 {
            self.out.push(Consumed::CODE, 0, &Consumed { bytes: consumed }, &[]);
        }
        any
    }

    fn take_watches(&mut self, done: &mut Vec<Done>) {
        let mut rest = Vec::new();
        for watch in std::mem::take(&mut self.completions.watches) {
            match state(&self.driver, &self.current, &watch.event) {
                None => rest.push(watch),
                Some(code) => {
                    self.completions.news_pending -= usize::from(watch.action.is_news());
                    let code = watch.action.settle(&self.driver, &self.current, code, Some(&watch.event));
                    done.push(Done { seq: watch.seq, code, action: watch.action });
                }
            }
        }
        self.completions.watches = rest;
    }

    fn take_entries(&mut self, done: &mut Vec<Done>) {
        let mut gone = Vec::new();
        let (driver, current, completions) = (&self.driver, &self.current, &mut self.completions);
        let (streams, bytes_pending) = (&mut self.streams, &mut completions.bytes_pending);
        let news_pending = &mut completions.news_pending;
        completions.active.retain(|id| {
            let Ok(stream) = streams.get_mut(*id) else { return false };
            let mut code = 0;
            while let Some(entry) = stream.entries.front() {
                match entry.event.as_ref().map(|event| state(driver, current, event)) {
                    Some(None) => return true,
                    Some(Some(error @ 1..)) => code = error,
                    Some(Some(0)) | None => {}
                }
                let Some(entry) = stream.entries.pop_front() else { break };
                stream.in_flight = stream.in_flight.saturating_sub(entry.operations);
                stream.completed = entry.event.or(stream.completed.take());
                *bytes_pending -= usize::from(matches!(entry.action, Action::HostBytes { .. }));
                *news_pending -= usize::from(entry.action.is_news());
                let code = entry.action.settle(driver, current, code, stream.completed.as_ref());
                done.push(Done { seq: entry.seq, code, action: entry.action });
            }
            if stream.destroyed {
                gone.push((stream.context, *id));
            }
            false
        });
        gone.into_iter().for_each(|(context, id)| self.forget_stream(context, id));
    }

    /// Reports an action to the client, or executes it. If the action lets the client conclude something about mirrors,
    /// it waits until they have been read.
    pub fn publish(&mut self, seq: u64, code: Code, action: Action) {
        if is_sticky(code) {
            self.note_sticky(code);
        }
        if action.lets_see() && self.mirrors.holds_back() {
            return self.mirrors.wait(Told { seq, code, action });
        }
        self.publish_now(seq, code, action);
    }

    pub fn publish_now(&mut self, seq: u64, code: Code, action: Action) {
        match action {
            Action::Marker | Action::Consumed { .. } if code != 0 => self.late(code),
            Action::Marker | Action::Consumed { .. } => {}
            Action::Reply(own) | Action::Shared { code: own, .. } => {
                self.synchronised(seq, if own == 0 { code } else { own })
            }
            Action::HostBytes { offset, buffer } => {
                if code == 0 {
                    let all = 0..buffer.len();
                    self.out.push_pinned(HostBytes::CODE, seq, &HostBytes { offset }, buffer, all);
                }
            }
            Action::Striped { .. } if code != 0 => self.synchronised(seq, code),
            Action::Striped { stripe, buffer } => self.send_striped(seq, stripe, buffer),
            Action::LateCopy => self.ask_for_bytes(seq),
            Action::Fenced { token } => self.out.push(Fenced::CODE, 0, &Fenced { token }, &[]),
            Action::Callback { token } => self.out.push(Callback::CODE, 0, &Callback { token }, &[]),
            Action::EventDone { event, generation } => self.event_done(event, generation, code),
            Action::SharedRecord { page, number } => page.complete(number),
            Action::Batch { number } => {
                self.batch_complete(number);
                if code != 0 {
                    self.late(code);
                }
            }
            Action::Synchronised => self.synchronised_now(seq, code),
            Action::Answer { of_event } => {
                let code = if of_event { self.tell_of_event(code) } else { code };
                self.reply(seq, code);
            }
            Action::MirrorsRead { window, buffer, failed } => {
                self.mirrors_read(&window, &buffer, if code == 0 { failed } else { code });
            }
            Action::Part { join } => self.part_done(join, code),
            Action::Zeroed(slab) => {
                if let Err(code) = self.slab_zeroed(&slab, code) {
                    self.late(code);
                }
                self.finish(seq);
            }
        }
    }

    fn part_done(&mut self, id: u64, code: Code) {
        let Some(join) = self.completions.joins.get_mut(&id) else { return };
        join.remaining -= 1;
        if join.code == 0 {
            join.code = code;
        }
        if join.remaining > 0 {
            return;
        }
        let Some(join) = self.completions.joins.remove(&id) else { return };
        match join.then {
            Then::Reply => self.synchronised(join.seq, join.code),
            Then::Fenced { token } => self.publish(0, 0, Action::Fenced { token }),
            Then::UnloadModule { context, module, token } => self.unload(context, module, token),
            Then::DestroyGraph { context, executable } => self.destroy_executable(context, executable),
            Then::DestroyContext { context, token } => self.closing.push((join.seq, context, token)),
        }
    }
}
