//! How far the streams are known to be: what was given to each last, and what of that is complete.

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u64,
    last: u64,
    complete: u64,
}

/// The streams that were used last, that one first. Of others nothing is known.
#[derive(Debug, Default)]
pub struct Streams(Vec<Stream>);

const MOST: usize = 32;

impl Streams {
    /// The stream was given a command. Called for every launch: most follow one in the same stream.
    pub fn note(&mut self, id: u64, number: u64) {
        if let Some(first) = self.0.first_mut()
            && first.id == id
        {
            first.last = number;
            return;
        }
        match self.0.iter().position(|stream| stream.id == id) {
            Some(place) => {
                self.0[place].last = number;
                self.0.swap(0, place);
            }
            None => {
                self.0.truncate(MOST - 1);
                self.0.insert(0, Stream { id, last: number, complete: 0 });
            }
        }
    }

    pub fn last(&self, id: u64) -> Option<u64> {
        self.0.iter().find(|stream| stream.id == id).map(|stream| stream.last)
    }

    pub fn note_complete(&mut self, id: u64, number: u64) {
        if let Some(stream) = self.0.iter_mut().find(|stream| stream.id == id) {
            stream.complete = stream.complete.max(number);
        }
    }

    pub fn is_complete(&self, id: u64) -> bool {
        self.0.iter().any(|stream| stream.id == id && stream.last <= stream.complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_complete_until_it_is_given_more() {
        let mut streams = Streams::default();
        assert!(!streams.is_complete(1), "nothing is known of it");
        streams.note(1, 10);
        streams.note(2, 11);
        assert_eq!((streams.last(1), streams.last(2), streams.last(3)), (Some(10), Some(11), None));
        streams.note_complete(1, 10);
        assert!(streams.is_complete(1) && !streams.is_complete(2));
        streams.note(1, 12);
        assert!(!streams.is_complete(1));
        streams.note_complete(1, 10);
        assert!(!streams.is_complete(1));
    }

    #[test]
    fn of_many_streams_the_ones_used_last_are_remembered() {
        let mut streams = Streams::default();
        for id in 0..100 {
            streams.note(id, id);
            streams.note_complete(id, id);
        }
        assert!(streams.is_complete(99) && !streams.is_complete(0));
        assert_eq!(streams.0.len(), MOST);
    }
}
