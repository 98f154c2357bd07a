//! Streams and events, and CUDA's rules for when work starts.

use crate::check::{self, Operation, Place};
use crate::engine::Fault;
use crate::ffi::R;
use crate::streams::context::{Context, StreamQueue};
use crate::streams::queue::{Marker, Queue, Turn};
use crate::streams::shared_event::SharedEvent;
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use driverapi::errors::CUDA_ERROR_LAUNCH_FAILED;
use graphs::StreamKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The legacy default stream. It waits for all blocking streams, and they wait for it.
    Legacy,
    Blocking,
    NonBlocking,
}

#[derive(Clone)]
pub struct Stream {
    pub id: usize,
    pub context: Arc<Context>,
    pub flags: u32,
    pub priority: i32,
    order: Order,
    queue: Arc<Queue>,
}

impl Stream {
    pub fn new(id: usize, context: Arc<Context>, flags: u32, priority: i32, order: Order) -> Stream {
        let queue = context.add_queue(order == Order::Blocking);
        Stream { id, context, flags, priority, order, queue }
    }

    pub fn legacy(context: Arc<Context>) -> Stream {
        let queue = Arc::clone(&context.legacy);
        Stream { id: CU_STREAM_LEGACY.addr(), context, flags: 0, priority: 0, order: Order::Legacy, queue }
    }

    pub fn per_thread(context: Arc<Context>) -> Stream {
        let queue = context.per_thread_queue();
        Stream { id: CU_STREAM_PER_THREAD.addr(), context, flags: 0, priority: 0, order: Order::Blocking, queue }
    }

    /// Returns the stream's number, which is unique in the process.
    pub fn number(&self) -> u64 {
        self.queue.number()
    }

    /// Whether this is a default stream, which the program need not create.
    pub fn is_default(&self) -> bool {
        self.id == CU_STREAM_LEGACY.addr() || self.id == CU_STREAM_PER_THREAD.addr()
    }

    /// Returns the stream in the form that the crate `graphs` uses for captures.
    pub fn for_capture(&self) -> graphs::Stream {
        let kind = match self.order {
            Order::Legacy => StreamKind::Legacy,
            Order::Blocking => StreamKind::Blocking,
            Order::NonBlocking => StreamKind::NonBlocking,
        };
        graphs::Stream { id: self.number(), context: self.context.id as u64, kind }
    }

    /// Retires the stream when its handle is destroyed. Its queued work still runs.
    pub fn retire(&self) {
        if let Some(checker) = check::checker() {
            let legacy = (self.order == Order::Blocking).then(|| self.context.legacy.number());
            checker.retire(self.queue.number(), legacy);
        }
        self.context.retire_queue(&self.queue);
    }

    pub fn end(&self) -> Marker {
        self.queue.end()
    }

    pub fn synchronise(&self) -> R {
        self.end().wait();
        self.host_waited();
        self.context.tell()
    }

    /// Records for the checker that the program knows all work of the stream to be done.
    pub fn host_waited(&self) {
        if let Some(checker) = check::checker() {
            checker.host_waited(self.queue.number());
        }
    }

    /// Returns the stream's place in the order, for the checker.
    fn place(&self, queues: &[StreamQueue]) -> Place {
        let after = match self.order {
            Order::NonBlocking => Vec::new(),
            Order::Blocking => vec![self.context.legacy.number()],
            Order::Legacy => queues.iter().filter(|each| each.blocking).map(|each| each.queue.number()).collect(),
        };
        Place { queue: self.queue.number(), after, stream: self.id }
    }

    /// Returns the place as [`Self::place`] does, for work that begins now.
    pub fn place_now(&self) -> Place {
        self.place(&self.context.queues())
    }

    /// Begins an operation of the stream in the checker, if there is a checker.
    fn begin(&self, queues: &[StreamQueue]) -> Option<Arc<Operation>> {
        check::checker().map(|checker| checker.begin(&self.place(queues)))
    }

    /// Queues work. It is skipped if the context has faulted before it starts.
    pub fn enqueue(&self, work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> R<Marker> {
        self.enqueue_after(Vec::new(), work)
    }

    /// Queues work as [`Self::enqueue`] does. The work also waits for markers of other streams.
    pub fn enqueue_after(
        &self,
        after: Vec<Marker>,
        work: impl FnOnce() -> Result<(), Fault> + Send + 'static,
    ) -> R<Marker> {
        let context = Arc::clone(&self.context);
        self.submit(after, move || attempt(&context, work))
    }

    /// Queues work that runs even after a fault. It starts after `after` and after all work that the stream's kind
    /// waits for.
    pub fn submit(&self, mut after: Vec<Marker>, work: impl FnOnce() + Send + 'static) -> R<Marker> {
        self.queue.wait_for_room();
        let queues = self.context.queues();
        after.extend(self.dependencies(&queues));
        match self.begin(&queues) {
            None => self.queue.submit(after, Box::new(work)),
            Some(operation) => self.queue.submit(after, Box::new(move || check::during(operation, work))),
        }
    }

    /// Does the work in stream order, and returns when it is done.
    pub fn run(&self, work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> R {
        if let Some(marker) = self.start(work)? {
            marker.wait();
        }
        self.host_waited();
        self.context.tell()
    }

    /// Does short work that never waits. If the stream is idle the work is done at once. Otherwise it is queued, and
    /// the marker of its end is returned.
    pub fn start(&self, work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> R<Option<Marker>> {
        let Some(turn) = self.try_turn() else { return self.enqueue(work).map(Some) };
        match check::checker() {
            None => attempt(&self.context, work),
            Some(checker) => check::during(checker.begin(&self.place_now()), || attempt(&self.context, work)),
        }
        drop(turn);
        Ok(None)
    }

    /// Claims the stream's next turn if the stream is idle. Never succeeds on a slow GPU.
    fn try_turn(&self) -> Option<Turn<'_>> {
        if self.context.profile().launch_micros > 0 {
            return None;
        }
        let queues = self.context.queues();
        let idle = self.dependencies(&queues).next().is_none();
        if idle { self.queue.try_turn() } else { None }
    }

    fn dependencies<'a>(&self, queues: &'a [StreamQueue]) -> impl Iterator<Item = Marker> + use<'a> {
        let (legacy, others) = match self.order {
            Order::NonBlocking => (None, [].iter()),
            Order::Blocking => (Some(self.context.legacy.end()), [].iter()),
            Order::Legacy => (None, queues.iter()),
        };
        let others = others.filter(|each| each.blocking).map(|each| each.queue.end());
        legacy.into_iter().chain(others).filter(|marker| !marker.is_reached())
    }
}

/// Runs work unless the context has faulted. A fault or a panic of the work becomes the context's fault.
fn attempt(context: &Context, work: impl FnOnce() -> Result<(), Fault>) {
    if context.fault() != 0 {
        return;
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => (),
        Ok(Err(fault)) => context.fail(&fault),
        Err(_) => {
            let message = "the software GPU failed inside an operation".to_owned();
            context.fail(&Fault { code: CUDA_ERROR_LAUNCH_FAILED, message });
        }
    }
}

pub struct Event {
    pub id: usize,
    pub context: usize,
    pub timed: bool,
    /// The part of the event that several processes share. It has the number of the latest record.
    pub shared: Option<Arc<SharedEvent>>,
    last: Mutex<Option<Record>>,
}

/// One record of an event: the marker at which the stream reaches it, and the time when it did.
#[derive(Clone)]
struct Record {
    marker: Marker,
    nanos: Arc<AtomicU64>,
    context: Arc<Context>,
}

/// A record that other processes can wait for. It is complete when this value is dropped, even if the record never ran.
struct Announced {
    event: Arc<SharedEvent>,
    record: u64,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.event.finish(self.record);
    }
}

/// Whether an event has a record, and whether its stream has reached the latest record.
pub enum Progress {
    NeverRecorded,
    Pending,
    /// The event was reached at this time, in nanoseconds since the driver started.
    Reached(u64),
}

impl Event {
    pub fn new(id: usize, context: usize, timed: bool, shared: Option<Arc<SharedEvent>>) -> Event {
        Event { id, context, timed, shared, last: Mutex::new(None) }
    }

    fn last(&self) -> Option<Record> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn record(&self, stream: &Stream, start: Instant) -> R {
        self.record_in_graph(stream, start)?;
        if let Some(checker) = check::checker() {
            checker.record(self.id, stream.queue.number());
        }
        Ok(())
    }

    /// Records the event as [`Self::record`] does, for a graph. The graph's steps have already reported their order to
    /// the checker.
    pub fn record_in_graph(&self, stream: &Stream, start: Instant) -> R {
        let nanos = Arc::new(AtomicU64::new(0));
        let stamp = Arc::clone(&nanos);
        let shared = self.shared.as_ref().map(|shared| Announced { event: Arc::clone(shared), record: shared.begin() });
        let now = move || {
            stamp.store(start.elapsed().as_nanos() as u64, Ordering::Release);
            drop(shared);
        };
        let marker = match stream.try_turn() {
            Some(turn) => {
                if let Some(checker) = check::checker() {
                    checker.begin(&stream.place_now());
                }
                now();
                turn.marker()
            }
            None => stream.submit(Vec::new(), now)?,
        };
        let record = Record { marker, nanos, context: Arc::clone(&stream.context) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    /// Makes all later work of `stream` wait for the event's latest record.
    pub fn hold(&self, stream: &Stream) -> R {
        if let Some(checker) = check::checker() {
            checker.wait(stream.queue.number(), self.id);
        }
        if let Some(shared) = &self.shared {
            let (shared, record) = (Arc::clone(shared), shared.latest());
            if shared.is_complete(record) {
                return Ok(());
            }
            let context = Arc::clone(&stream.context);
            return stream.submit(Vec::new(), move || shared.wait(record, || context.is_stopped())).map(drop);
        }
        match self.last().filter(|record| !record.marker.is_reached()) {
            Some(record) => stream.submit(vec![record.marker], || ()).map(drop),
            None => Ok(()),
        }
    }

    pub fn progress(&self) -> Progress {
        let progress = self.look();
        if matches!(progress, Progress::Reached(_)) {
            self.host_saw();
        }
        progress
    }

    /// Records for the checker that the program knows the latest record to be reached.
    fn host_saw(&self) {
        if let Some(checker) = check::checker() {
            checker.host_saw(self.id);
        }
    }

    fn look(&self) -> Progress {
        if let Some(shared) = &self.shared {
            return match shared.latest() {
                0 => Progress::NeverRecorded,
                record if shared.is_complete(record) => Progress::Reached(0),
                _ => Progress::Pending,
            };
        }
        match self.last() {
            None => Progress::NeverRecorded,
            Some(record) if record.marker.is_reached() => Progress::Reached(record.nanos.load(Ordering::Acquire)),
            Some(_) => Progress::Pending,
        }
    }

    pub fn synchronise(&self) -> R {
        if let Some(shared) = &self.shared {
            shared.wait(shared.latest(), || false);
            self.host_saw();
            return self.last().map_or(Ok(()), |record| record.context.tell());
        }
        let Some(record) = self.last() else { return Ok(()) };
        record.marker.wait();
        self.host_saw();
        record.context.tell()
    }
}
