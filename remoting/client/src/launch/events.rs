//! Events that a launch records itself: launch attributes `PROGRAMMATIC_EVENT` and `LAUNCH_COMPLETION_EVENT`.
//!
//! CUDA accepts only events without timing, and no flags:
//! <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html>, `CUlaunchAttributeID`.

use crate::Code;
use crate::boundary::{input, inputs};
use crate::objects::event::{self, Event};
use crate::objects::stream::Target;
use driverapi::attributes::{
    CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::{CUevent, CUlaunchAttribute, CUlaunchConfig};
use graphs::{Edge, LaunchEdges};
use protocol::{LaunchAttribute, LaunchShape, Recording};
use std::ffi::c_int;
use std::sync::Arc;

pub struct LaunchEvent {
    attribute: u32,
    pub event: Arc<Event>,
    at_block_start: bool,
}

/// Returns the events that a launch configuration names, sorted by id.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or `CUDA_ERROR_INVALID_VALUE` for an event with timing, or one that is named twice.
///
/// # Safety
/// `config` is null or valid for a read, and so are its attributes.
pub unsafe fn read(config: *const CUlaunchConfig) -> Result<Vec<LaunchEvent>, Code> {
    // SAFETY: as the caller vouches.
    let attributes = unsafe {
        let config = input(config)?;
        inputs(config.attrs, config.numAttrs as usize)?
    };
    let mut events: Vec<_> = attributes.iter().filter_map(named).collect::<Result<_, _>>()?;
    events.sort_by_key(|named| named.event.id);
    let twice = events.windows(2).any(|pair| pair[0].event.id == pair[1].event.id);
    if twice { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(events) }
}

fn named(given: &CUlaunchAttribute) -> Option<Result<LaunchEvent, Code>> {
    let (event, flags, at_start): (CUevent, c_int, c_int) = match given.id {
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
            // SAFETY: the id determines the field of the union, and every bit pattern is valid.
            let value = unsafe { given.value.programmaticEvent };
            (value.event, value.flags, value.triggerAtBlockStart)
        }
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
            // SAFETY: as above.
            let value = unsafe { given.value.launchCompletionEvent };
            (value.event, value.flags, 0)
        }
        _ => return None,
    };
    let check = |event: Arc<Event>| match event.is_timed() || flags != 0 {
        true => Err(CUDA_ERROR_INVALID_VALUE),
        false => Ok(LaunchEvent { attribute: given.id, event, at_block_start: at_start != 0 }),
    };
    Some(event::get(event).and_then(check))
}

/// Converts a launch's attributes to edges for a graph, where edges express programmatic dependencies. Removes the
/// serialization attribute from `shape`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` for an event of another context.
pub fn edges(target: &Target, events: &[LaunchEvent], shape: &mut LaunchShape) -> Result<LaunchEdges, Code> {
    events.iter().try_for_each(|named| named.event.check_context(target))?;
    let edge = |named: &LaunchEvent| match (named.attribute, named.at_block_start) {
        (CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, _) => Edge::LAUNCH_ORDER,
        (_, true) => Edge::AT_BLOCK_START,
        (_, false) => Edge::PROGRAMMATIC,
    };
    let asks = |attribute: &LaunchAttribute| attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    let programmatic = shape.attributes.iter().any(|attribute| asks(attribute) && attribute.value[0] as u32 != 0);
    shape.attributes.retain(|attribute| !asks(attribute));
    Ok(LaunchEdges { programmatic, events: events.iter().map(|named| (named.event.id, edge(named))).collect() })
}

/// Sends a launch with `send`. The launch counts as a record of each of its events.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` for an event of another context, or the reason why the launch could not be sent.
pub fn post(
    target: &Target,
    events: &[LaunchEvent],
    mut shape: LaunchShape,
    send: impl FnOnce(LaunchShape) -> Result<u64, Code>,
) -> Result<(), Code> {
    let recorded: Vec<&Event> = events.iter().map(|named| &*named.event).collect();
    event::record_by(&recorded, target, |generations| {
        for (named, generation) in events.iter().zip(generations) {
            let (event, at_block_start) = (named.event.id, named.at_block_start);
            let record = Recording { event, generation: *generation, at_block_start };
            shape.attributes.push(LaunchAttribute::of_recording(named.attribute, record));
        }
        send(shape)
    })
}
