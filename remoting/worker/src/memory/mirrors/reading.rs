//! Reads mirrors before the client gets a message that lets it conclude that the device has written to them.
//!
//! Mirrors are read on the streams that carry the client's changes, so that the program's work does not delay the
//! reading. One reading serves all messages that waited when it began. Later messages wait for the next reading.

use super::known::{Mirror, Reading, Then, Told, between};
use super::plan::{self, Window};
use crate::driver::staging::Buffer;
use crate::driver::{Code, Result};
use crate::io::frames::Payload;
use crate::order::command::{Command, Frame};
use crate::order::completions::Action;
use crate::session::commands::{Outcome, Session};
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use driverapi::rules::{Rule, kept};
use protocol::{BULK_CHUNK, MIRROR_RUNS, Message, MirrorAdd, MirrorChanges, MirrorEnd, MirrorsTold};
use std::rc::Rc;

/// Limit on the windows that are being read at the same time.
const UNDER_WAY: usize = 2;
/// The number of bytes that the client may leave unread. Beyond it, no more mirrors are read.
const AHEAD: usize = 4 << 20;

impl Session {
    pub fn mirror_add(&mut self, seq: u64, stream_id: u64, c: &MirrorAdd) -> Result<()> {
        self.memory.check(c.address, c.size)?;
        self.same_context(stream_id, c.context)?;
        let most = self.budgets.mirror_bytes;
        match self.mirrors.add(seq, stream_id, c, most) {
            Err(CUDA_ERROR_OUT_OF_MEMORY) => {
                Err(self.out_of("bytes of mirrors (beyond it they are fetched whole)", most))
            }
            added => added,
        }
    }

    pub fn mirror_changes(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::MirrorChanges(MirrorChanges { parts }) = &frame.command else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let (seq, stream_id) = (frame.seq, frame.stream_id);
        let runs: Vec<_> =
            parts.iter().flat_map(|part| part.runs.iter().map(|run| (part.mirror, run.clone()))).collect();
        let len = frame.tail().len();
        let said: u64 = runs.iter().map(|(_, run)| u64::from(run.len)).sum();
        if len > BULK_CHUNK || runs.len() > MIRROR_RUNS || said != len as u64 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = self.streams.get(stream_id)?.context;
        let Some(stream) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        let Some(mut buffer) = self.buffer(context, len)? else { return Ok(Outcome::Blocked) };
        buffer.bytes_mut().copy_from_slice(frame.tail());
        frame.payload = Payload::Heap(Vec::new());
        let mut from = 0;
        for (mirror, run) in &runs {
            let piece = from..from + run.len as usize;
            from = piece.end;
            let sent = self.mirrors.change(context, *mirror, run, buffer.bytes(piece.clone())).and_then(|address| {
                let (Some(address), false) = (address, piece.is_empty()) else { return Ok(false) };
                let host = buffer.address(piece.start, piece.len()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                self.driver.copy_to_device(address, host, piece.len(), stream).map(|()| true)
            });
            match sent {
                Ok(true) => self.issued(stream_id),
                Ok(false) => {}
                Err(code) => self.late(code),
            }
        }
        self.mirrors.applied.entry(context).or_default().last = seq;
        if let Err(code) = self.entry(stream_id, seq, Action::Consumed { bytes: len as u64, _buffer: buffer }) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }

    /// Removes a mirror. The caller may unmap its memory afterwards.
    pub fn mirror_end(&mut self, c: &MirrorEnd) -> Result<()> {
        let Some(stream_id) = self.mirrors.end(c.mirror) else { return Ok(()) };
        let reads = self.mirrors.reading.as_ref().is_some_and(|reading| reading.under_way > 0);
        let entries = &self.streams.get(stream_id)?.entries;
        match entries.iter().rev().find_map(|entry| entry.event.clone()).filter(|_| reads) {
            // The reading waits only for small copies of this worker.
            Some(event) => {
                self.current.set(&self.driver, event.context())?;
                self.driver.event_synchronize(event.handle)
            }
            None => Ok(()),
        }
    }

    /// Starts and continues readings, then sends the messages that waited for them. Returns whether anything was done.
    pub fn read_mirrors(&mut self) -> bool {
        let mut any = false;
        while let Some(mut reading) = self.mirrors.reading.take().or_else(|| self.next_reading()) {
            while reading.under_way < UNDER_WAY && self.out.unsent() <= AHEAD {
                let Some(window) = reading.windows.front().cloned() else { break };
                match self.read_window(&window) {
                    Ok(true) => reading.under_way += 1,
                    Ok(false) => break,
                    Err(code) => {
                        self.mirrors.forget_reading(&window);
                        self.late(code);
                    }
                }
                reading.windows.pop_front();
                any = true;
            }
            if reading.under_way > 0 || !reading.windows.is_empty() {
                self.mirrors.reading = Some(reading);
                return any;
            }
            any = true;
            self.have_read(reading.then);
        }
        any
    }

    fn next_reading(&mut self) -> Option<Reading> {
        if let Some((seq, id)) = self.mirrors.added.pop_front() {
            let place = self.mirrors.all.get(&id).map(Mirror::place);
            if let Some(place) = &place {
                // From now on the driver reports writes to the pages that belong only to this mirror. Earlier writes
                // are not reported.
                let pages = place.pages(|_, _| false);
                let _ = self.driver.written(pages.start, pages.end.saturating_sub(pages.start));
            }
            let is_mapped = |start, len| self.memory.is_mapped(start, len);
            let windows = plan::windows(place.into_iter().collect(), between(is_mapped)).into();
            return Some(Reading { windows, under_way: 0, then: Then::Answer(seq) });
        }
        let wanted = std::mem::take(&mut self.mirrors.is_wanted);
        if self.mirrors.waiting.is_empty() && !wanted {
            return None;
        }
        let all = self.mirrors.waiting.len();
        let served = if kept(Rule::MirrorShared) { all } else { all.min(1) };
        let then = Then::Tell(self.mirrors.waiting.drain(..served).collect());
        if !self.mirrors.is_dirty {
            return Some(Reading { windows: [].into(), under_way: 0, then });
        }
        let windows = self.mirrors.windows_to_read(&self.driver, |start, len| self.memory.is_mapped(start, len));
        self.mirrors.all.values_mut().for_each(|mirror| mirror.changed.clear());
        let busy = |(id, stream): (u64, &crate::session::objects::Stream)| {
            stream.in_flight > 0 && !self.mirrors.is_carrier(id)
        };
        let is_dirty = self.streams.live().any(busy);
        self.mirrors.is_dirty = is_dirty || served < all || !kept(Rule::MirrorUntouched);
        Some(Reading { windows, under_way: 0, then })
    }

    /// Gives the copies of a window to the driver. Returns false if the stream has no room or no buffer is free.
    fn read_window(&mut self, window: &Rc<Window>) -> Result<bool> {
        let Some(stream) = self.begin(window.stream_id)? else { return Ok(false) };
        let Some(buffer) = self.buffer(window.context, window.len)? else { return Ok(false) };
        let mut failed = 0;
        for span in &window.spans {
            let host = buffer.address(span.to, span.len).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            match self.driver.copy_to_host(host, span.address, span.len, stream) {
                Ok(()) => self.issued(window.stream_id),
                Err(code) => failed = code,
            }
        }
        let read = Action::MirrorsRead { window: Rc::clone(window), buffer, failed };
        // The entry is added even after an error, and reports that error.
        let _ = self.entry(window.stream_id, 0, read);
        Ok(true)
    }

    /// Handles a window that has been read.
    pub fn mirrors_read(&mut self, window: &Window, buffer: &Buffer, code: Code) {
        let Some(reading) = &mut self.mirrors.reading else { return };
        reading.under_way -= 1;
        let tells = matches!(reading.then, Then::Tell(_));
        let bytes = buffer.bytes(0..buffer.len());
        if code != 0 {
            self.mirrors.forget_reading(window);
            return self.late(code);
        }
        if !tells {
            return self.mirrors.fill(window, bytes);
        }
        let (parts, tail) = self.mirrors.differ(window, bytes);
        if !parts.is_empty() {
            self.tell_mirrors(window.context, parts, &tail);
        }
    }

    fn tell_mirrors(&mut self, context: u64, parts: Vec<protocol::MirrorPart>, tail: &[u8]) {
        let applied = self.mirrors.applied.entry(context).or_default();
        applied.told = applied.last;
        let told = MirrorsTold { context, applied: applied.last, parts };
        self.out.push(MirrorsTold::CODE, 0, &told, tail);
    }

    fn have_read(&mut self, then: Then) {
        match then {
            Then::Answer(seq) => self.reply(seq, 0),
            Then::Tell(all) => {
                let applied = self.mirrors.applied.iter().filter(|_| kept(Rule::MirrorConfirm));
                let new = applied.filter(|(_, applied)| applied.told < applied.last);
                let new: Vec<u64> = new.map(|(context, _)| *context).collect();
                new.into_iter().for_each(|context| self.tell_mirrors(context, Vec::new(), &[]));
                all.into_iter().for_each(|Told { seq, code, action }| self.publish_now(seq, code, action));
            }
        }
    }
}
