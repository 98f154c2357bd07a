//! Events. The client counts the records of an event; the worker reports which record is complete.

use crate::Code;
use crate::boundary::refused;
use crate::devices::context::{self, Live};
use crate::devices::handles::{Kind, Table};
use crate::devices::ticket::Token;
use crate::objects::shared_event;
use crate::objects::stream::Target;
use crate::program::process;
use crate::session::{Known, Progress, lock, mint};
use driverapi::constants::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS};
use driverapi::errors::*;
use driverapi::types::CUevent;
use protocol::{EventCreate, EventDestroy, EventQuery, EventRecord, EventSynchronize, StreamWaitEvent};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

static EVENTS: Table<Event> = Table::new(Kind::Event);

#[derive(Default, Clone, Copy)]
struct Record {
    /// The number of the latest record, or 0 if the event was never recorded.
    generation: u64,
    /// The number of the command that records the event, and its stream.
    command: u64,
    stream_id: u64,
    /// The latest record for which the client has sent a query.
    asked: u64,
    /// The number of a command after the first query. The worker reports the completion of all later records unasked.
    followed_from: Option<u64>,
    /// The time at which a query last returned that the latest record is not complete.
    refused_at: Option<Instant>,
}

/// The maximum time between two queries of a program that polls an event in a loop.
const LOOP: Duration = Duration::from_micros(10);
/// The maximum time that a query in a polling loop waits. A loop that never sleeps could take the CPU from the thread
/// that delivers the answer.
const PATIENCE: Duration = Duration::from_micros(100);

impl Record {
    fn add(&mut self, generation: u64, command: u64, stream_id: u64) {
        self.generation = generation;
        (self.command, self.stream_id) = (command, stream_id);
        self.refused_at = None;
    }

    /// Returns whether the worker reports the completion of the latest record unasked.
    fn is_followed(&self) -> bool {
        self.generation <= self.asked || self.followed_from.is_some_and(|first| first < self.command)
    }
}

pub struct Event {
    pub handle: usize,
    pub id: u64,
    pub live: Arc<Live>,
    flags: u32,
    record: Mutex<Record>,
    /// The token of the event, if processes share it.
    shared: Mutex<Option<Token>>,
    progress: Arc<Progress>,
}

/// Creates an event in the current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for flags that are unknown or exclude each other.
pub fn create(flags: u32) -> Result<Arc<Event>, Code> {
    let live = context::current()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let timed = flags & CU_EVENT_DISABLE_TIMING == 0;
    if flags & !known != 0 || (timed && flags & CU_EVENT_INTERPROCESS != 0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    make(live, flags)
}

/// Creates an event for the library itself. The program has no handle of it. It is destroyed with its context.
///
/// # Errors
/// The session's sticky error.
pub fn create_in(live: &Arc<Live>) -> Result<Arc<Event>, Code> {
    make(Arc::clone(live), CU_EVENT_DISABLE_TIMING)
}

/// Creates an event that stands for an event of another process.
///
/// # Errors
/// The session's sticky error.
pub fn create_interprocess(live: &Arc<Live>) -> Result<Arc<Event>, Code> {
    make(Arc::clone(live), CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)
}

fn make(live: Arc<Live>, flags: u32) -> Result<Arc<Event>, Code> {
    let (id, progress) = (mint(), Arc::new(Progress::default()));
    live.at_end(end_in);
    live.session.follow_event(id, &progress);
    live.session.post(0, &EventCreate { event: id, context: live.id, flags })?;
    let make = |handle| {
        Arc::new(Event { handle, id, live, flags, record: Mutex::default(), shared: Mutex::default(), progress })
    };
    EVENTS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Returns the event with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn get(handle: CUevent) -> Result<Arc<Event>, Code> {
    process::check_initialised()?;
    let event = EVENTS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    context::usable(&event.live)?;
    Ok(event)
}

/// Destroys an event, and returns its id.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub fn destroy(handle: CUevent) -> Result<u64, Code> {
    let event = get(handle)?;
    EVENTS.remove(handle.addr());
    event.live.session.forget_event(event.id);
    event.live.session.post(0, &EventDestroy { event: event.id })?;
    Ok(event.id)
}

fn end_in(live: &Arc<Live>) {
    for event in EVENTS.remove_where(|event| event.live.id == live.id) {
        event.live.session.forget_event(event.id);
    }
}

/// Records events as a part of another command, which `send` sends. `send` gets the record number of each event and
/// returns the command's number. The events are distinct and sorted by id.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if the stream belongs to another context, or the error of `send`.
pub fn record_by(
    events: &[&Event],
    target: &Target,
    send: impl FnOnce(&[u64]) -> Result<u64, Code>,
) -> Result<(), Code> {
    events.iter().try_for_each(|event| event.check_context(target))?;
    if events.iter().any(|event| event.is_shared()) {
        return refused("recording an event that processes share by a launch");
    }
    let mut records: Vec<_> = events.iter().map(|event| lock(&event.record)).collect();
    let generations: Vec<_> = records.iter().map(|record| record.generation + 1).collect();
    let command = send(&generations)?;
    for (record, generation) in records.iter_mut().zip(generations) {
        record.add(generation, command, target.stream_id);
    }
    Ok(())
}

impl Event {
    pub fn is_timed(&self) -> bool {
        self.flags & CU_EVENT_DISABLE_TIMING == 0
    }

    pub fn is_interprocess(&self) -> bool {
        self.flags & CU_EVENT_INTERPROCESS != 0
    }

    fn is_shared(&self) -> bool {
        self.is_interprocess() && lock(&self.shared).is_some()
    }

    /// Returns the token of the event. The first call shares the event by calling `how`.
    ///
    /// # Errors
    /// The error of `how`.
    pub fn share(&self, how: impl FnOnce() -> Result<Token, Code>) -> Result<Token, Code> {
        let mut shared = lock(&self.shared);
        match *shared {
            Some(token) => Ok(token),
            None => Ok(*shared.insert(how()?)),
        }
    }

    pub fn is_recorded(&self) -> bool {
        lock(&self.record).generation > 0
    }

    /// Checks that the event and the stream have the same context.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if the stream belongs to another context.
    pub fn check_context(&self, target: &Target) -> Result<(), Code> {
        let same = target.live.id == self.live.id && Arc::ptr_eq(&target.live.session, &self.live.session);
        if same { Ok(()) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
    }

    /// Records the event in a stream.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if the stream belongs to another context.
    pub fn record(&self, target: &Target, flags: u32) -> Result<(), Code> {
        self.check_context(target)?;
        let mut record = lock(&self.record);
        let generation = record.generation + 1;
        if self.is_shared() {
            shared_event::announce(self, generation)?;
        }
        let command = self.live.session.post(target.stream_id, &EventRecord { event: self.id, generation, flags })?;
        record.add(generation, command, target.stream_id);
        Ok(())
    }

    fn is_done(&self, record: &Record) -> bool {
        self.is_known(record, Known::Complete)
    }

    fn is_known(&self, record: &Record, how: Known) -> bool {
        let done = self.progress.done.load(SeqCst);
        record.generation <= done || self.live.is_complete(record.stream_id, how, record.command)
    }

    /// Returns `Ok` if the latest record has completed. Only the first query needs a round trip; the worker reports
    /// later completions unasked.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_READY`, or the code of failed work.
    pub fn query(&self) -> Result<(), Code> {
        let session = &self.live.session;
        if self.is_shared() {
            return shared_event::query(self);
        }
        let record = *lock(&self.record);
        if self.is_done(&record) {
            return Ok(());
        }
        if record.is_followed() {
            session.flush()?;
            let loops = record.refused_at.is_some_and(|at| at.elapsed() < LOOP);
            session.poll(if loops { PATIENCE } else { Duration::ZERO });
            session.check()?;
            if self.is_done(&record) {
                return Ok(());
            }
            lock(&self.record).refused_at = Some(Instant::now());
            return Err(CUDA_ERROR_NOT_READY);
        }
        let answer = session.call(0, &EventQuery { event: self.id, generation: record.generation })?;
        let mut now = lock(&self.record);
        now.asked = now.asked.max(record.generation);
        now.followed_from.get_or_insert_with(|| session.last_command());
        drop(now);
        match answer.code {
            0 => {
                self.progress.done.fetch_max(record.generation, SeqCst);
                Ok(())
            }
            code => Err(code),
        }
    }

    /// Waits for the latest record.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn synchronise(&self) -> Result<(), Code> {
        if self.is_shared() {
            return shared_event::synchronise(self);
        }
        let record = *lock(&self.record);
        if self.is_known(&record, Known::Told) {
            return self.live.session.wait_for_nothing();
        }
        let wait = EventSynchronize { event: self.id, generation: record.generation };
        self.live.session.synchronise(0, &wait)?;
        self.progress.done.fetch_max(record.generation, SeqCst);
        Ok(())
    }

    /// Makes later work of a stream wait for the latest record.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn hold_up(&self, target: &Target, flags: u32) -> Result<(), Code> {
        if self.is_shared() {
            return shared_event::hold_up(self, target);
        }
        let record = *lock(&self.record);
        if self.is_done(&record) {
            return Ok(());
        }
        if !Arc::ptr_eq(&self.live.session, &target.live.session) {
            return self.hold_up_elsewhere(target, record.generation);
        }
        let wait = StreamWaitEvent { event: self.id, generation: record.generation, flags };
        target.live.session.post(target.stream_id, &wait).map(drop)
    }

    fn hold_up_elsewhere(&self, target: &Target, generation: u64) -> Result<(), Code> {
        let gate = target.live.session.post_gate(target.stream_id)?;
        let progress = Arc::clone(&self.progress);
        let open = move |code| {
            if code == 0 {
                progress.done.fetch_max(generation, SeqCst);
            }
            gate.open(code);
        };
        self.live.session.call_then(0, &EventSynchronize { event: self.id, generation }, Box::new(open));
        Ok(())
    }
}
