//! When what streams write to the program's memory has arrived, as far as the program's own calls tell: a small model of
//! CUDA's order. It never says that something is there before it is.

use crate::memory::Area;
use std::collections::{HashMap, HashSet};

/// A stream; the null stream of a thread of its own has the thread's number.
pub type Stream = (u64, u64);
pub const LEGACY: Stream = (0, 0);
/// Up to which moment of each stream something is known to be done.
type Moments = HashMap<Stream, u64>;

pub struct Arrival {
    /// The number of the record whose call writes it.
    pub record: usize,
    pub name: String,
    pub area: Area,
    pub context: u64,
    stream: Stream,
    moment: u64,
}

#[derive(Default)]
pub struct Arrivals {
    now: u64,
    expected: Vec<Arrival>,
    /// What a stream has waited for.
    streams: HashMap<Stream, Moments>,
    events: HashMap<u64, Moments>,
    apart: HashSet<u64>,
}

impl Arrivals {
    pub fn expect(&mut self, stream: Stream, record: usize, name: String, area: Area, context: u64) {
        self.now += 1;
        // One that is still expected there is written over.
        self.expected.retain(|known| known.area.address != area.address);
        self.expected.push(Arrival { record, name, area, context, stream, moment: self.now });
    }

    /// A stream that the null stream does not wait for.
    pub fn set_apart(&mut self, stream: u64) {
        self.apart.insert(stream);
    }

    pub fn record(&mut self, event: u64, stream: Stream) {
        let moments = self.reached(stream);
        self.events.insert(event, moments);
    }

    pub fn wait(&mut self, stream: Stream, event: u64) {
        let moments = self.events.get(&event).cloned().unwrap_or_default();
        merge(self.streams.entry(stream).or_default(), &moments);
    }

    fn reached(&self, stream: Stream) -> Moments {
        let mut moments = Moments::from([(stream, self.now)]);
        if stream == LEGACY {
            let blocking =
                self.expected.iter().filter(|known| known.stream.1 == 0 && !self.apart.contains(&known.stream.0));
            moments.extend(blocking.map(|known| (known.stream, self.now)));
        }
        for stream in moments.clone().keys() {
            merge(&mut moments, self.streams.get(stream).unwrap_or(&Moments::new()));
        }
        moments
    }

    pub fn stream_is_done(&mut self, stream: Stream) -> Vec<Arrival> {
        let moments = self.reached(stream);
        self.take(|known| moments.get(&known.stream).is_some_and(|moment| known.moment <= *moment))
    }

    pub fn event_is_done(&mut self, event: u64) -> Vec<Arrival> {
        let moments = self.events.get(&event).cloned().unwrap_or_default();
        self.take(|known| moments.get(&known.stream).is_some_and(|moment| known.moment <= *moment))
    }

    pub fn context_is_done(&mut self, context: u64) -> Vec<Arrival> {
        self.take(|known| known.context == context)
    }

    fn take(&mut self, done: impl Fn(&Arrival) -> bool) -> Vec<Arrival> {
        let (done, expected) = std::mem::take(&mut self.expected).into_iter().partition(done);
        self.expected = expected;
        done
    }
}

fn merge(into: &mut Moments, other: &Moments) {
    for (stream, moment) in other {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Stream = (100, 0);
    const SECOND: Stream = (200, 0);

    fn expect(arrivals: &mut Arrivals, stream: Stream, record: usize) {
        arrivals.expect(stream, record, "to".into(), Area::line(record as u64, 1), 7);
    }

    fn records(done: Vec<Arrival>) -> Vec<usize> {
        done.iter().map(|arrival| arrival.record).collect()
    }

    #[test]
    fn an_event_tells_what_was_before_it_also_through_streams_that_waited() {
        let mut arrivals = Arrivals::default();
        expect(&mut arrivals, FIRST, 1);
        arrivals.record(50, FIRST);
        expect(&mut arrivals, FIRST, 2);
        arrivals.wait(SECOND, 50);
        expect(&mut arrivals, SECOND, 3);
        assert_eq!(records(arrivals.stream_is_done(SECOND)), [1, 3]);
        assert_eq!(records(arrivals.event_is_done(50)), [0; 0]);
        assert_eq!(records(arrivals.stream_is_done(FIRST)), [2]);
    }

    #[test]
    fn the_null_stream_waits_for_all_but_those_apart() {
        let mut arrivals = Arrivals::default();
        arrivals.set_apart(SECOND.0);
        expect(&mut arrivals, FIRST, 1);
        expect(&mut arrivals, SECOND, 2);
        expect(&mut arrivals, (0, 4), 3);
        assert_eq!(records(arrivals.stream_is_done(LEGACY)), [1]);
        assert_eq!(records(arrivals.context_is_done(8)), [0; 0]);
        assert_eq!(records(arrivals.context_is_done(7)), [2, 3]);
    }

    #[test]
    fn what_is_written_over_is_not_told() {
        let mut arrivals = Arrivals::default();
        arrivals.expect(FIRST, 1, "to".into(), Area::line(64, 1), 7);
        arrivals.expect(FIRST, 2, "to".into(), Area::line(64, 1), 7);
        assert_eq!(records(arrivals.stream_is_done(FIRST)), [2]);
    }
}
