//! Launch attributes that record an event. Their value identifies the record.

use crate::message::LaunchAttribute;

/// A record of an event by a launch, with `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT` or
/// `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`. It is sent as the attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording {
    pub event: u64,
    pub generation: u64,
    /// Whether each block triggers the event when it starts; only for programmatic events.
    pub at_block_start: bool,
}

impl LaunchAttribute {
    pub const PROGRAMMATIC_EVENT: u32 = 7;
    pub const COMPLETION_EVENT: u32 = 12;

    pub fn of_recording(id: u32, r: Recording) -> LaunchAttribute {
        LaunchAttribute { id, value: [r.event, r.generation, u64::from(r.at_block_start), 0, 0, 0, 0, 0] }
    }

    pub fn recording(&self) -> Option<Recording> {
        let [event, generation, at_start, ..] = self.value;
        matches!(self.id, LaunchAttribute::PROGRAMMATIC_EVENT | LaunchAttribute::COMPLETION_EVENT)
            .then_some(Recording { event, generation, at_block_start: at_start != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_travels_as_the_value_of_its_attribute() {
        let record = Recording { event: 3, generation: u64::MAX, at_block_start: true };
        for id in [LaunchAttribute::PROGRAMMATIC_EVENT, LaunchAttribute::COMPLETION_EVENT] {
            assert_eq!(LaunchAttribute::of_recording(id, record).recording(), Some(record));
        }
        assert_eq!(LaunchAttribute { id: 6, value: [1; 8] }.recording(), None);
    }
}
