//! Streams, including the default streams.

pub use crate::devices::target::Target;

use crate::Code;
use crate::boundary::DefaultStream;
use crate::devices::context::{self, Context, GREATEST_PRIORITY, LEAST_PRIORITY, Live};
use crate::devices::handles::{Kind, Table};
use crate::memory::mapped;
use crate::program::process;
use crate::session::lock;
use driverapi::constants::{CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
use driverapi::errors::*;
use driverapi::of_thread::{OfThreads, Own};
use driverapi::types::CUstream;
use protocol::StreamDestroy;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

static STREAMS: Table<Stream> = Table::new(Kind::Stream);

/// The values that the program set, by stream and attribute.
static ATTRIBUTES: Mutex<BTreeMap<(u64, u32), AttributeValue>> = Mutex::new(BTreeMap::new());

pub type AttributeValue = [u8; 64];

pub struct Stream {
    pub handle: usize,
    pub id: u64,
    pub live: Arc<Live>,
    pub flags: u32,
    pub priority: i32,
    /// The generation of the last record of completed copies that the stream has waited for.
    copies_seen: AtomicU64,
}

/// Creates a stream in the current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags.
pub fn create(flags: u32, priority: i32) -> Result<Arc<Stream>, Code> {
    let live = context::current()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let id = live.start_stream(flags, priority)?;
    live.at_end(end_in);
    let copies_seen = AtomicU64::new(0);
    let make = |handle| Arc::new(Stream { handle, id, live, flags, priority, copies_seen });
    STREAMS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Destroys a stream, and returns its id.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is no such stream.
pub fn destroy(handle: CUstream) -> Result<u64, Code> {
    process::check_initialised()?;
    let stream = STREAMS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    context::usable(&stream.live)?;
    STREAMS.remove(handle.addr());
    lock(&ATTRIBUTES).retain(|(stream_id, _), _| *stream_id != stream.id);
    stream.live.session.post(stream.id, &StreamDestroy { stream: stream.id })?;
    stream.live.session.forget_queue(stream.id);
    Ok(stream.id)
}

fn end_in(live: &Arc<Live>) {
    STREAMS.remove_where(|stream| stream.live.id == live.id);
}

/// The per-thread default streams of a thread, one for each context in which the thread used one.
type PerThread = Vec<(Arc<Live>, u64)>;

static PER_THREAD: OfThreads<PerThread> = OfThreads::new(end_streams);

thread_local! {
    static STREAMS_OF_THREAD: Own<PerThread> = const { Cell::new(None) };
}

fn end_streams(streams: PerThread) {
    if process::check_initialised().is_err() {
        return;
    }
    for (live, stream_id) in streams {
        // If the context was destroyed, its streams are, too. No caller could get the error, so it is ignored.
        if Context::is_live(&live) {
            let _ = live.session.post(stream_id, &StreamDestroy { stream: stream_id });
        }
    }
}

fn per_thread_stream(live: &Arc<Live>) -> Result<u64, Code> {
    PER_THREAD.with(&STREAMS_OF_THREAD, |streams| {
        if let Some((_, stream_id)) = streams.iter().find(|(l, _)| Arc::ptr_eq(l, live)) {
            return Ok(*stream_id);
        }
        let stream_id = live.start_stream(CU_STREAM_DEFAULT, LEAST_PRIORITY)?;
        streams.retain(|(l, _)| Context::is_live(l));
        streams.push((Arc::clone(live), stream_id));
        Ok(stream_id)
    })
}

/// Prepares a stream for new work and returns it: waits until its queue has room, sends the program's writes to
/// mirrors, and makes the stream wait for copies that the program considers complete.
///
/// # Errors
/// Those of [`find`].
pub fn resolve(handle: CUstream, default: DefaultStream) -> Result<Target, Code> {
    let (target, stream) = look_up(handle, default)?;
    if let Some(stream) = stream.filter(|stream| stream.flags & CU_STREAM_NON_BLOCKING != 0) {
        target.live.wait_for_copies(stream.id, &stream.copies_seen)?;
    }
    mapped::before_work(&target.live.session, target.stream_id)?;
    target.live.session.wait_for_queue(target.stream_id)?;
    Ok(target)
}

/// Returns the stream that a handle means for the calling thread.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or the reason why there is no context.
pub fn find(handle: CUstream, default: DefaultStream) -> Result<Target, Code> {
    look_up(handle, default).map(|(target, _)| target)
}

fn look_up(handle: CUstream, default: DefaultStream) -> Result<(Target, Option<Arc<Stream>>), Code> {
    let default = match (handle.addr(), default) {
        (0, default) => default,
        (1, _) => DefaultStream::Legacy,
        (2, _) => DefaultStream::PerThread,
        (other, _) => {
            process::check_initialised()?;
            let stream = STREAMS.get(other).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            context::usable(&stream.live)?;
            let Stream { id: stream_id, flags, priority, .. } = *stream;
            return Ok((Target { live: Arc::clone(&stream.live), stream_id, flags, priority }, Some(stream)));
        }
    };
    let live = context::current()?;
    let stream_id = match default {
        DefaultStream::Legacy => live.legacy_stream,
        DefaultStream::PerThread => per_thread_stream(&live)?,
    };
    Ok((Target { live, stream_id, flags: CU_STREAM_DEFAULT, priority: LEAST_PRIORITY }, None))
}

impl Target {
    pub fn attribute(&self, attribute: u32) -> Option<AttributeValue> {
        lock(&ATTRIBUTES).get(&(self.stream_id, attribute)).copied()
    }

    pub fn set_attribute(&self, attribute: u32, value: AttributeValue) {
        lock(&ATTRIBUTES).insert((self.stream_id, attribute), value);
    }

    /// Copies all attributes that were set on another stream.
    pub fn copy_attributes(&self, from: &Target) {
        let mut all = lock(&ATTRIBUTES);
        let set: Vec<_> =
            all.range((from.stream_id, 0)..=(from.stream_id, u32::MAX)).map(|(key, v)| (key.1, *v)).collect();
        all.extend(set.into_iter().map(|(attribute, value)| ((self.stream_id, attribute), value)));
    }
}
