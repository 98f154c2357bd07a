//! Events that a launch records by itself (launch attributes). Each record uses a driver event, as in `event_record`.
//!
//! Such an event says nothing about its stream, because it may be complete before the kernel. Therefore it is watched
//! separately, and never counts as progress of the stream.

use crate::code::launch_shape::attribute;
use crate::driver::events::RealEvent;
use crate::driver::{Code, Result};
use crate::order::completions::Action;
use crate::session::commands::Session;
use driverapi::errors::*;
use driverapi::types::CUlaunchAttribute;
use protocol::{LaunchAttribute, Recording};
use std::rc::Rc;

/// The attributes in the driver's form, and the event records that they make.
pub struct LaunchAttributes {
    pub raw: Vec<CUlaunchAttribute>,
    records: Vec<(Recording, Rc<RealEvent>)>,
}

impl Session {
    /// Converts the attributes of a launch. The stream's context must be current.
    pub fn launch_attributes(&mut self, stream_id: u64, given: &[LaunchAttribute]) -> Result<LaunchAttributes> {
        let mut all = LaunchAttributes { raw: Vec::with_capacity(given.len()), records: Vec::new() };
        for a in given {
            match a.recording() {
                None => all.raw.push(attribute(a)?),
                Some(record) => {
                    let real = self.event_for_launch(stream_id, record.event)?;
                    all.raw.push(raw(a.id, record, &real));
                    all.records.push((record, real));
                }
            }
        }
        Ok(all)
    }

    /// Takes a driver event for a record of a launch. CUDA requires that the event belongs to the stream's context and
    /// has no timing.
    fn event_for_launch(&self, stream_id: u64, event: u64) -> Result<Rc<RealEvent>> {
        let event = self.events.get(event)?;
        if self.streams.get(stream_id)?.context != event.context {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        if event.timing {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.contexts.get(event.context)?.events.take(&self.driver, false)
    }

    /// Registers the event records of a launch that the driver has accepted.
    pub fn launch_recorded(&mut self, seq: u64, attributes: LaunchAttributes) -> Result<()> {
        for (record, real) in attributes.records {
            let event = self.events.get_mut(record.event)?;
            let followed = event.followed;
            event.record(record.generation, Ok(real.clone()));
            if followed {
                let done = Action::EventDone { event: record.event, generation: record.generation };
                self.watch(seq, real, done);
            }
        }
        Ok(())
    }

    /// Registers that the event records of a launch failed, because the launch failed.
    pub fn launch_not_recorded(&mut self, attributes: &[LaunchAttribute], code: Code) {
        for record in attributes.iter().filter_map(LaunchAttribute::recording) {
            let Ok(event) = self.events.get_mut(record.event) else { continue };
            let followed = event.followed;
            event.record(record.generation, Err(code));
            if followed {
                self.event_done(record.event, record.generation, code);
            }
        }
    }
}

/// Returns a `CUlaunchAttribute` with an event: the handle, flags (none), and whether blocks trigger the event when
/// they begin.
fn raw(id: u32, record: Recording, real: &RealEvent) -> CUlaunchAttribute {
    let at_start = u64::from(record.at_block_start) << 32;
    CUlaunchAttribute::new(id, [real.handle.0 as u64, at_start, 0, 0, 0, 0, 0, 0])
}
