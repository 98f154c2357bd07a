//! Streams, the default ones included.

use crate::call::{Code, DefaultStream};
use crate::context::{self, Context, Live};
use crate::handles::{Kind, Table};
use crate::memory::mapped;
use crate::process;
use crate::session::{lock, mint};
use driverapi::constants::{CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
use driverapi::errors::*;
use driverapi::types::CUstream;
use protocol::{StreamCreate, StreamDestroy};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

static STREAMS: Table<Stream> = Table::new(Kind::Stream);

/// What the program set on streams, by lane and attribute.
static ATTRIBUTES: Mutex<BTreeMap<(u64, u32), AttributeValue>> = Mutex::new(BTreeMap::new());

pub type AttributeValue = [u8; 64];

pub struct Stream {
    pub handle: usize,
    pub lane: u64,
    pub live: Arc<Live>,
    pub flags: u32,
    pub priority: i32,
    /// The record of completed copies that it waited for.
    copies_seen: AtomicU64,
}

/// Where a command goes.
#[derive(Clone)]
pub struct Target {
    pub live: Arc<Live>,
    pub lane: u64,
    pub flags: u32,
    pub priority: i32,
}

/// Highest and lowest priority that streams can have here, as CUDA numbers them.
pub const GREATEST_PRIORITY: i32 = -5;
pub const LEAST_PRIORITY: i32 = 0;

/// A new lane of the context.
///
/// # Errors
/// The session's sticky error.
pub fn start(live: &Live, flags: u32, priority: i32) -> Result<u64, Code> {
    let lane = mint();
    live.session.post(0, &StreamCreate { stream: lane, context: live.id, flags, priority })?;
    Ok(lane)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags.
pub fn create(flags: u32, priority: i32) -> Result<Arc<Stream>, Code> {
    let live = context::current()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let lane = start(&live, flags, priority)?;
    let copies_seen = AtomicU64::new(0);
    let make = |handle| Arc::new(Stream { handle, lane, live, flags, priority, copies_seen });
    STREAMS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub fn destroy(handle: CUstream) -> Result<(), Code> {
    process::check_initialised()?;
    let stream = STREAMS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    context::usable(&stream.live)?;
    STREAMS.remove(handle.addr());
    lock(&ATTRIBUTES).retain(|(lane, _), _| *lane != stream.lane);
    stream.live.session.post(stream.lane, &StreamDestroy { stream: stream.lane }).map(drop)
}

pub fn forget_context(context: u64) {
    STREAMS.remove_where(|stream| stream.live.id == context);
}

/// The streams of a thread, one for each context it used per-thread streams in; they end with the thread.
#[derive(Default)]
struct PerThread(Vec<(Arc<Live>, u64)>);

impl Drop for PerThread {
    fn drop(&mut self) {
        if process::check_initialised().is_err() {
            return;
        }
        for (live, lane) in self.0.drain(..) {
            // A context that is gone took its streams with it; nobody is left to hear of an error.
            if Context::is_live(&live) {
                let _ = live.session.post(lane, &StreamDestroy { stream: lane });
            }
        }
    }
}

thread_local! {
    static PER_THREAD: RefCell<PerThread> = RefCell::default();
}

fn per_thread_lane(live: &Arc<Live>) -> Result<u64, Code> {
    let known = |streams: &PerThread| streams.0.iter().find(|(l, _)| Arc::ptr_eq(l, live)).map(|(_, lane)| *lane);
    PER_THREAD
        .try_with(|streams| {
            let mut streams = streams.borrow_mut();
            if let Some(lane) = known(&streams) {
                return Ok(lane);
            }
            let lane = start(live, CU_STREAM_DEFAULT, LEAST_PRIORITY)?;
            streams.0.retain(|(l, _)| Context::is_live(l));
            streams.0.push((Arc::clone(live), lane));
            Ok(lane)
        })
        .unwrap_or(Err(CUDA_ERROR_DEINITIALIZED))
}

/// What a stream handle means for the calling thread.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or why there is no context.
pub fn resolve(handle: CUstream, default: DefaultStream) -> Result<Target, Code> {
    let default = match (handle.addr(), default) {
        (0, default) => default,
        (1, _) => DefaultStream::Legacy,
        (2, _) => DefaultStream::PerThread,
        (other, _) => {
            process::check_initialised()?;
            let stream = STREAMS.get(other).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            context::usable(&stream.live)?;
            let Stream { lane, flags, priority, .. } = *stream;
            if flags & CU_STREAM_NON_BLOCKING != 0 {
                stream.live.wait_for_copies(lane, &stream.copies_seen)?;
            }
            mapped::before_work(&stream.live.session, lane)?;
            return Ok(Target { live: Arc::clone(&stream.live), lane, flags, priority });
        }
    };
    let live = context::current()?;
    let lane = match default {
        DefaultStream::Legacy => live.legacy_lane,
        DefaultStream::PerThread => per_thread_lane(&live)?,
    };
    mapped::before_work(&live.session, lane)?;
    Ok(Target { live, lane, flags: CU_STREAM_DEFAULT, priority: LEAST_PRIORITY })
}

impl Target {
    pub fn attribute(&self, attribute: u32) -> Option<AttributeValue> {
        lock(&ATTRIBUTES).get(&(self.lane, attribute)).copied()
    }

    pub fn set_attribute(&self, attribute: u32, value: AttributeValue) {
        lock(&ATTRIBUTES).insert((self.lane, attribute), value);
    }

    /// Takes over every attribute that was set on another stream.
    pub fn copy_attributes(&self, from: &Target) {
        let mut all = lock(&ATTRIBUTES);
        let set: Vec<_> = all.range((from.lane, 0)..=(from.lane, u32::MAX)).map(|(key, v)| (key.1, *v)).collect();
        all.extend(set.into_iter().map(|(attribute, value)| ((self.lane, attribute), value)));
    }
}
