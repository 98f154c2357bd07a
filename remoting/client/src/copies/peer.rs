//! Work that involves streams or memory of several appliances. It runs in stream order, and the program's threads do
//! not wait for it.

use crate::Code;
use crate::devices::context::{LEAST_PRIORITY, Live};
use crate::objects::stream::Target;
use crate::session::{DeviceBox, PeerSource, Session, lock};
use driverapi::constants::CU_STREAM_NON_BLOCKING;
use protocol::{StreamSynchronize, UNCOUNTED};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A stream of the library for one purpose at a time. If two purposes used one stream, they could wait for each other.
struct SpareStream {
    live: Arc<Live>,
    stream_id: u64,
}

impl SpareStream {
    /// Takes a spare stream, and makes it wait for copies that the program considers complete.
    fn take(live: &Arc<Live>) -> Result<SpareStream, Code> {
        let spare = lock(&live.spare_streams).pop();
        let stream_id = spare.map_or_else(|| live.start_stream(CU_STREAM_NON_BLOCKING, LEAST_PRIORITY), Ok)?;
        let it = SpareStream { live: Arc::clone(live), stream_id };
        live.wait_for_copies(stream_id, &AtomicU64::new(0))?;
        Ok(it)
    }
}

impl Drop for SpareStream {
    fn drop(&mut self) {
        lock(&self.live.spare_streams).push(self.stream_id);
    }
}

/// The memory that pending copies to other appliances will read: first byte, and the byte after the last.
static READ: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
static READ_ENDS: Condvar = Condvar::new();

struct Reading(u64, u64);

impl Reading {
    fn new(start: u64, end: u64) -> Reading {
        lock(&READ).push((start, end));
        Reading(start, end)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut all = lock(&READ);
        if let Some(place) = all.iter().position(|range| *range == (self.0, self.1)) {
            all.swap_remove(place);
        }
        READ_ENDS.notify_all();
    }
}

/// Waits until no copy to another appliance reads this memory. Called before the memory is freed.
pub fn wait_until_read(start: u64, end: u64) {
    let mut all = lock(&READ);
    while all.iter().any(|(from, to)| *from < end && start < *to) {
        all = READ_ENDS.wait(all).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Makes later work of the stream `later` wait for the earlier work of the stream `earlier`, which has another session.
/// Drops `keep` when the earlier work is complete.
fn follow(earlier: (&Session, u64), later: (&Arc<Session>, u64), keep: Option<SpareStream>) -> Result<(), Code> {
    let gate = later.0.post_gate(later.1)?;
    let open = move |code| {
        drop(keep);
        gate.open(code);
    };
    earlier.0.call_then(earlier.1, &StreamSynchronize { launches: UNCOUNTED }, Box::new(open));
    Ok(())
}

/// Runs `issue` on the appliance of `live`, in the order of the target's stream, which may belong to another appliance.
///
/// # Errors
/// The error of `issue`, or a session's sticky error.
pub fn on_behalf(
    target: &Target,
    live: &Arc<Live>,
    issue: impl FnOnce(&Target) -> Result<(), Code>,
) -> Result<(), Code> {
    let session = &target.live.session;
    if Arc::ptr_eq(session, &live.session) {
        return issue(target);
    }
    let spare = SpareStream::take(live)?;
    let (flags, priority) = (CU_STREAM_NON_BLOCKING, LEAST_PRIORITY);
    let on_spare = Target { live: Arc::clone(live), stream_id: spare.stream_id, flags, priority };
    follow((session, target.stream_id), (&live.session, spare.stream_id), None)?;
    issue(&on_spare)?;
    follow((&live.session, spare.stream_id), (session, target.stream_id), Some(spare))
}

/// Copies `span` bytes from another appliance's memory to memory of the target's appliance. A later failure is reported
/// by the session `told`.
///
/// # Errors
/// A session's sticky error.
pub fn copy(
    target: &Target,
    to: &DeviceBox,
    from_live: &Arc<Live>,
    from: DeviceBox,
    span: u64,
    told: &Arc<Session>,
) -> Result<(), Code> {
    let spare = SpareStream::take(from_live)?;
    let source = PeerSource {
        session: Arc::clone(&from_live.session),
        stream_id: spare.stream_id,
        told: Arc::clone(told),
        guard: Box::new((spare, Reading::new(from.address, from.address + span))),
        memory: from,
    };
    target.live.session.copy_from_peer(target.stream_id, to, source)
}
