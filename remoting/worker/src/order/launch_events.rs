//! Events that launches record themselves. Each record takes a driver's event of its own, as `event_record` does.
//!
//! Such an event says nothing about its stream: it may be complete before the kernel is. So it is watched by itself,
//! and never marks the progress of the stream.

use crate::code::launch_shape::attribute;
use crate::driver::events::RealEvent;
use crate::driver::{Code, Result};
use crate::order::completions::Action;
use crate::session::commands::Session;
use driverapi::errors::*;
use driverapi::types::CUlaunchAttribute;
use protocol::{LaunchAttribute, Recording};
use std::rc::Rc;

/// The attributes in the driver's form, and the records that they make.
pub struct LaunchAttributes {
    pub raw: Vec<CUlaunchAttribute>,
    records: Vec<(Recording, Rc<RealEvent>)>,
}

impl Session {
    /// Converts the attributes of a launch. The context of the stream must be current.
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

    /// Takes an event for a record of a launch. As CUDA requires, it is one of the stream's context, without timing.
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

    /// Notes the records of a launch that the driver has accepted.
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

    /// Notes that the records of a launch failed with it.
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

/// Makes a `CUlaunchAttributeValue` with an event: the handle, flags (none), and whether blocks trigger it at their
/// start.
fn raw(id: u32, record: Recording, real: &RealEvent) -> CUlaunchAttribute {
    let at_start = u64::from(record.at_block_start) << 32;
    CUlaunchAttribute::new(id, [real.handle.0 as u64, at_start, 0, 0, 0, 0, 0, 0])
}
