//! How far the streams are known to be: what was given to each last, and what of that is complete.

#[derive(Debug, Clone, Copy)]
struct Lane {
    id: u64,
    last: u64,
    complete: u64,
}

/// The streams that were used last, that one first. Of others nothing is known.
#[derive(Debug, Default)]
pub struct Lanes(Vec<Lane>);

const MOST: usize = 32;

impl Lanes {
    /// The stream was given a command. Called for every launch: most follow one in the same stream.
    pub fn note(&mut self, id: u64, number: u64) {
        if let Some(first) = self.0.first_mut()
            && first.id == id
        {
            first.last = number;
            return;
        }
        match self.0.iter().position(|lane| lane.id == id) {
            Some(place) => {
                self.0[place].last = number;
                self.0.swap(0, place);
            }
            None => {
                self.0.truncate(MOST - 1);
                self.0.insert(0, Lane { id, last: number, complete: 0 });
            }
        }
    }

    pub fn last(&self, id: u64) -> Option<u64> {
        self.0.iter().find(|lane| lane.id == id).map(|lane| lane.last)
    }

    pub fn note_complete(&mut self, id: u64, number: u64) {
        if let Some(lane) = self.0.iter_mut().find(|lane| lane.id == id) {
            lane.complete = lane.complete.max(number);
        }
    }

    pub fn is_complete(&self, id: u64) -> bool {
        self.0.iter().any(|lane| lane.id == id && lane.last <= lane.complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_complete_until_it_is_given_more() {
        let mut lanes = Lanes::default();
        assert!(!lanes.is_complete(1), "nothing is known of it");
        lanes.note(1, 10);
        lanes.note(2, 11);
        assert_eq!((lanes.last(1), lanes.last(2), lanes.last(3)), (Some(10), Some(11), None));
        lanes.note_complete(1, 10);
        assert!(lanes.is_complete(1) && !lanes.is_complete(2));
        lanes.note(1, 12);
        assert!(!lanes.is_complete(1));
        lanes.note_complete(1, 10);
        assert!(!lanes.is_complete(1));
    }

    #[test]
    fn of_many_streams_the_ones_used_last_are_remembered() {
        let mut lanes = Lanes::default();
        for id in 0..100 {
            lanes.note(id, id);
            lanes.note_complete(id, id);
        }
        assert!(lanes.is_complete(99) && !lanes.is_complete(0));
        assert_eq!(lanes.0.len(), MOST);
    }
}
