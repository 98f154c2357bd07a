//! Events that processes of a lease share (`CU_EVENT_INTERPROCESS`). Only the workers know the latest record, so each
//! record, wait and query needs a round trip: another process may query the event as soon as the call has returned.

use crate::Code;
use crate::devices::context;
use crate::devices::ticket::Token;
use crate::objects::event::{self, Event};
use crate::objects::stream::Target;
use crate::session::mint;
use driverapi::errors::*;
use protocol::{
    EventExport, EventImport, Exported, Gate, SharedEventGate, SharedEventQuery, SharedEventRecord,
    SharedEventSynchronize,
};
use std::sync::Arc;

/// Exports an event to the other processes of the lease.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` for an event that was not created to be shared, `CUDA_ERROR_OUT_OF_MEMORY` if the lease
/// has reached its limit of exports.
pub fn export(event: &Event) -> Result<Token, Code> {
    if !event.is_interprocess() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    event.share(|| {
        let answer = event.live.session.call(0, &EventExport { event: event.id })?;
        Ok(answer.success()?.decode::<Exported>()?.token)
    })
}

/// Imports an event that another process exported.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if no process has this event any more.
pub fn import(token: Token) -> Result<Arc<Event>, Code> {
    let event = event::create_interprocess(&context::current()?)?;
    let imported = event.share(|| {
        event.live.session.call(0, &EventImport { event: event.id, token })?.success()?;
        Ok(token)
    });
    match imported {
        Ok(_) => Ok(event),
        Err(code) => {
            event::destroy(std::ptr::without_provenance_mut(event.handle))?;
            Err(code)
        }
    }
}

/// Announces the next record of an event, and waits for the answer. The caller then sends the record.
///
/// # Errors
/// The session's sticky error.
pub fn announce(event: &Event, generation: u64) -> Result<(), Code> {
    event.live.session.call(0, &SharedEventRecord { event: event.id, generation })?.success().map(drop)
}

/// Returns `Ok` if the latest record of any process has completed.
///
/// # Errors
/// `CUDA_ERROR_NOT_READY`, or the session's sticky error.
pub fn query(event: &Event) -> Result<(), Code> {
    event.live.session.call(0, &SharedEventQuery { event: event.id })?.success().map(drop)
}

/// Waits for the latest record of any process.
///
/// # Errors
/// The code of failed work.
pub fn synchronise(event: &Event) -> Result<(), Code> {
    event.live.session.synchronise(0, &SharedEventSynchronize { event: event.id })
}

/// Makes later work of a stream wait for the latest record of any process.
///
/// # Errors
/// The session's sticky error.
pub fn hold_up(event: &Event, target: &Target) -> Result<(), Code> {
    let (session, gate) = (&event.live.session, mint());
    if !Arc::ptr_eq(session, &target.live.session) {
        let gate = target.live.session.post_gate(target.stream_id)?;
        session.call_then(0, &SharedEventSynchronize { event: event.id }, Box::new(move |code| gate.open(code)));
        return Ok(());
    }
    match session.call(0, &SharedEventGate { event: event.id, gate })?.code {
        0 => Ok(()),
        CUDA_ERROR_NOT_READY => session.post(target.stream_id, &Gate { token: gate }).map(drop),
        code => Err(code),
    }
}
