//! Records of the progress of streams: the last command of each, and the commands that are known to be complete.

use driverapi::rules::{Rule, kept};

/// A level of knowledge about completed commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The commands are complete, so the program may continue.
    Complete,
    /// The commands are complete, and the worker has reported their output and their late error. A wait needs no
    /// request.
    Told,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u64,
    last: u64,
    complete: u64,
    told: u64,
}

impl Stream {
    fn known(&self, how: Known) -> u64 {
        match how {
            Known::Told if kept(Rule::IdleTold) => self.told,
            _ => self.complete,
        }
    }
}

#[derive(Debug, Default)]
pub struct Streams {
    /// The most recently used streams, the latest first. There is no record of other streams.
    used: Vec<Stream>,
    /// The number of the program's last command in any stream.
    newest: u64,
    /// The number of the last command of streams that were dropped from `used` before all their work was reported.
    forgotten: u64,
    /// The number of the last command that has no stream and no waiting thread. An error of this command may still be
    /// unreported.
    loose: u64,
    /// The number of the command up to which all results were reported.
    told: u64,
    /// Streams that the library created for itself. Their commands are not recorded, because they are not the
    /// program's.
    own: Vec<u64>,
}

const MOST: usize = 32;

impl Streams {
    /// Records a command of a stream. Runs for every launch, and is fastest if the last command had the same stream.
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
            None => self.remember(Stream { id, last: number, complete: 0, told: 0 }),
        }
    }

    fn remember(&mut self, stream: Stream) {
        let forgotten = self.used.drain(self.used.len().min(MOST - 1)..);
        let open = forgotten.filter(|stream| stream.last > stream.told).map(|stream| stream.last);
        self.forgotten = open.fold(self.forgotten, u64::max);
        self.used.insert(0, stream);
    }

    /// Records a command that has no stream and no waiting thread.
    pub fn note_loose(&mut self, number: u64) {
        self.loose = number;
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

    /// Returns the number of the command up to which the stream's work is known to be complete.
    pub fn complete(&self, id: u64, how: Known) -> u64 {
        self.find(id).map_or(0, |stream| stream.known(how))
    }

    /// Returns whether all work of the stream is known to be complete, given that all commands up to `synchronised`
    /// are. A stream without a record counts as complete only if all streams are.
    pub fn is_complete(&self, id: u64, how: Known, synchronised: u64) -> bool {
        let known = |stream: &Stream| stream.last <= stream.known(how).max(synchronised);
        self.find(id).map_or(self.newest <= synchronised, known) && self.has_told(how, synchronised)
    }

    /// Returns whether all work of all streams is known to be complete, given that all commands up to `synchronised`
    /// are.
    pub fn is_quiet(&self, how: Known, synchronised: u64) -> bool {
        let mut used = self.used.iter();
        let known =
            self.forgotten <= synchronised && used.all(|stream| stream.last <= stream.known(how).max(synchronised));
        known && self.has_told(how, synchronised)
    }

    /// Like [`Streams::is_complete`], for a legacy stream, which waits for other streams. Their later work does not
    /// count if they have had no command since the legacy stream was last complete.
    pub fn is_legacy_complete(&self, id: u64, how: Known, synchronised: u64) -> bool {
        let waited = self.newest <= self.complete(id, how) && self.has_told(how, synchronised);
        waited || self.is_quiet(how, synchronised)
    }

    fn has_told(&self, how: Known, synchronised: u64) -> bool {
        how == Known::Complete || self.loose <= self.told.max(synchronised) || !kept(Rule::IdleLoose)
    }

    pub fn note_complete(&mut self, id: u64, how: Known, number: u64) {
        if how == Known::Told {
            self.told = self.told.max(number);
        }
        let told = if how == Known::Told { number } else { 0 };
        match self.used.iter_mut().find(|stream| stream.id == id) {
            Some(stream) => {
                stream.complete = stream.complete.max(number);
                stream.told = stream.told.max(told);
            }
            None if self.own.contains(&id) || told == 0 => {}
            // The stream has had no command, or its record was dropped.
            None => self.remember(Stream { id, last: self.forgotten, complete: number, told }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Known::{Complete, Told};
    use super::*;

    #[test]
    fn what_is_known_of_a_stream() {
        let mut streams = Streams::default();
        streams.note(1, 10);
        streams.note(2, 11);
        assert_eq!(streams.newest(), 11);
        assert!(!streams.is_complete(1, Complete, 9) && streams.is_complete(1, Complete, 10));
        assert!(!streams.is_complete(3, Complete, 10), "it may have been given the newest");
        assert_eq!(streams.complete(1, Complete), 0);
        streams.note_complete(1, Told, 11);
        assert_eq!((streams.complete(1, Complete), streams.complete(2, Complete)), (11, 0));
        assert!(streams.is_complete(1, Complete, 0) && streams.is_complete(1, Told, 0));
        streams.note(1, 12);
        streams.note_complete(1, Told, 10);
        assert_eq!((streams.is_complete(1, Told, 0), streams.complete(1, Told)), (false, 11));
    }

    #[test]
    fn what_a_question_answered_is_complete_and_not_told() {
        let mut streams = Streams::default();
        streams.note(1, 10);
        streams.note_complete(1, Complete, 10);
        assert!(streams.is_complete(1, Complete, 0) && !streams.is_complete(1, Told, 0));
        assert!(streams.is_quiet(Complete, 0) && !streams.is_quiet(Told, 0));
        streams.note_complete(1, Told, 10);
        assert!(streams.is_complete(1, Told, 0) && streams.is_quiet(Told, 0));
    }

    #[test]
    fn a_stream_that_was_waited_for_is_known_though_it_was_given_nothing() {
        let mut streams = Streams::default();
        streams.note(1, 10);
        streams.own(9);
        for id in [3, 9] {
            streams.note_complete(id, Told, 11);
        }
        assert!(streams.is_complete(3, Told, 0) && !streams.is_complete(9, Told, 0));
        streams.note(3, 12);
        assert!(!streams.is_complete(3, Told, 0));
    }

    #[test]
    fn a_command_outside_of_streams_may_have_failed_until_the_next_answer() {
        let mut streams = Streams::default();
        streams.note(1, 10);
        streams.note_complete(1, Told, 10);
        streams.note_loose(11);
        assert!(streams.is_complete(1, Complete, 0) && !streams.is_complete(1, Told, 0) && !streams.is_quiet(Told, 0));
        assert!(streams.is_complete(1, Told, 11));
        streams.note_complete(2, Told, 12);
        assert!(streams.is_complete(1, Told, 0) && streams.is_quiet(Told, 0));
    }

    #[test]
    fn it_is_quiet_when_no_stream_has_more_to_do() {
        let mut streams = Streams::default();
        streams.own(9);
        streams.note(9, 1);
        assert_eq!((streams.newest(), streams.is_quiet(Complete, 0)), (0, true));
        streams.note(1, 10);
        streams.note(2, 11);
        assert!(streams.is_quiet(Complete, 11) && !streams.is_quiet(Complete, 10));
        streams.note_complete(2, Told, 11);
        assert!(streams.is_quiet(Complete, 10) && !streams.is_quiet(Complete, 9));
        for id in 100..200 {
            streams.note(id, id);
            streams.note_complete(id, Told, id);
        }
        let quiet = |at| streams.is_quiet(Complete, at);
        assert!(quiet(10) && !quiet(9), "the first stream was forgotten before it was complete");
        streams.disown(9);
        streams.note(9, 300);
        assert!(!streams.is_quiet(Complete, 299));
    }

    #[test]
    fn of_many_streams_the_ones_used_last_are_remembered() {
        let mut streams = Streams::default();
        for id in 0..100 {
            streams.note(id, id);
            streams.note_complete(id, Told, id);
        }
        assert_eq!((streams.complete(99, Told), streams.complete(0, Told)), (99, 0));
        assert_eq!(streams.used.len(), MOST);
    }
}
