//! How far the streams are known to be: what was given to each last, and what of that is complete.

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u64,
    last: u64,
    complete: u64,
}

#[derive(Debug, Default)]
pub struct Streams {
    /// The streams that were used last, that one first. Of others nothing is known.
    used: Vec<Stream>,
    /// What was given last to any stream of the program.
    newest: u64,
    /// The same of those that were forgotten before they were known to be complete.
    forgotten: u64,
    /// Streams of the library's own, which nothing of the program is given to. Nothing is noted of them.
    own: Vec<u64>,
}

const MOST: usize = 32;

impl Streams {
    /// The stream was given a command. Called for every launch: most follow one in the same stream.
    pub fn note(&mut self, id: u64, number: u64) {
        if self.own.contains(&id) {
            return;
        }
        self.newest = number;
        if let Some(first) = self.used.first_mut()
            && first.id == id
        {
            first.last = number;
            return;
        }
        match self.used.iter().position(|stream| stream.id == id) {
            Some(place) => {
                self.used[place].last = number;
                self.used.swap(0, place);
            }
            None => {
                let forgotten = self.used.drain(self.used.len().min(MOST - 1)..);
                let incomplete = forgotten.filter(|stream| stream.last > stream.complete).map(|stream| stream.last);
                self.forgotten = incomplete.fold(self.forgotten, u64::max);
                self.used.insert(0, Stream { id, last: number, complete: 0 });
            }
        }
    }

    fn find(&self, id: u64) -> Option<&Stream> {
        self.used.iter().find(|stream| stream.id == id)
    }

    pub fn own(&mut self, id: u64) {
        self.own.push(id);
    }

    pub fn disown(&mut self, id: u64) {
        self.own.retain(|own| *own != id);
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The last command that the stream was given: of one that is not remembered, any may be.
    pub fn last(&self, id: u64) -> u64 {
        self.find(id).map_or(self.newest, |stream| stream.last)
    }

    /// The stream's commands up to this one are known to be complete.
    pub fn complete(&self, id: u64) -> u64 {
        self.find(id).map_or(0, |stream| stream.complete)
    }

    /// Is everything known to be complete, if that is known of all commands up to this one?
    pub fn is_quiet(&self, synchronised: u64) -> bool {
        let mut used = self.used.iter();
        self.forgotten <= synchronised && used.all(|stream| stream.last <= stream.complete.max(synchronised))
    }

    pub fn note_complete(&mut self, id: u64, number: u64) {
        if let Some(stream) = self.used.iter_mut().find(|stream| stream.id == id) {
            stream.complete = stream.complete.max(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_stream() {
        let mut streams = Streams::default();
        streams.note(1, 10);
        streams.note(2, 11);
        assert_eq!((streams.last(1), streams.last(2), streams.newest()), (10, 11, 11));
        assert_eq!(streams.last(3), 11, "it may have been given the newest");
        assert_eq!(streams.complete(1), 0);
        streams.note_complete(1, 11);
        assert_eq!((streams.complete(1), streams.complete(2)), (11, 0));
        streams.note(1, 12);
        streams.note_complete(1, 10);
        assert_eq!((streams.last(1), streams.complete(1)), (12, 11));
        streams.note_complete(3, 11);
        assert_eq!(streams.complete(3), 0, "nothing is known of it");
    }

    #[test]
    fn it_is_quiet_when_no_stream_has_more_to_do() {
        let mut streams = Streams::default();
        streams.own(9);
        streams.note(9, 1);
        assert_eq!((streams.newest(), streams.is_quiet(0)), (0, true));
        streams.note(1, 10);
        streams.note(2, 11);
        assert!(streams.is_quiet(11) && !streams.is_quiet(10));
        streams.note_complete(2, 11);
        assert!(streams.is_quiet(10) && !streams.is_quiet(9));
        for id in 100..200 {
            streams.note(id, id);
            streams.note_complete(id, id);
        }
        assert!(streams.is_quiet(10) && !streams.is_quiet(9), "the first stream was forgotten before it was complete");
        streams.disown(9);
        streams.note(9, 300);
        assert!(!streams.is_quiet(299));
    }

    #[test]
    fn of_many_streams_the_ones_used_last_are_remembered() {
        let mut streams = Streams::default();
        for id in 0..100 {
            streams.note(id, id);
            streams.note_complete(id, id);
        }
        assert_eq!((streams.complete(99), streams.complete(0)), (99, 0));
        assert_eq!(streams.used.len(), MOST);
    }
}
