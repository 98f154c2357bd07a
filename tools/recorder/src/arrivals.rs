//! A small model of CUDA's order. It determines from the program's calls which asynchronous writes to host memory are
//! complete. It never reports a write before the write is complete.

use crate::arguments::Call;
use crate::memory::{Area, value, word};
use driverapi::types::CUlaunchConfig;
use std::collections::{HashMap, HashSet};

/// A stream: its handle, and for the null stream of a thread (per-thread default stream) the number of the thread.
pub type Stream = (u64, u64);
pub const LEGACY: Stream = (0, 0);
/// The flag `CU_STREAM_NON_BLOCKING`: the null stream does not wait for this stream.
const NON_BLOCKING: u64 = 1;
/// For each stream, the moment up to which all of its work is known to be complete.
type Moments = HashMap<Stream, u64>;

#[derive(Clone)]
pub struct Arrival {
    /// The number of the record whose call makes the write.
    pub record: usize,
    pub name: String,
    pub area: Area,
    pub context: u64,
    /// Whether a later completed write begins at the same address.
    pub covered: bool,
    stream: Stream,
    moment: u64,
}

#[derive(Default)]
pub struct Arrivals {
    now: u64,
    expected: Vec<Arrival>,
    /// For each stream, the work that it has waited for.
    streams: HashMap<Stream, Moments>,
    events: HashMap<u64, Moments>,
    apart: HashSet<u64>,
}

impl Arrivals {
    pub fn expect(&mut self, stream: Stream, record: usize, name: String, area: Area, context: u64) {
        self.now += 1;
        let moment = self.now;
        self.expected.push(Arrival { record, name, area, context, stream, moment, covered: false });
    }

    /// Removes the expected writes to memory that was freed.
    pub fn forget(&mut self, base: u64) {
        self.expected.retain(|known| known.area.address != base || !known.name.starts_with("memory#"));
    }

    /// Expects arrivals again after only a part of the program has learned of them.
    pub fn put_back(&mut self, arrivals: Vec<Arrival>) {
        self.expected.extend(arrivals);
    }

    /// Updates the model after a call that succeeded. Returns the writes that the program now knows to be complete.
    pub fn follow(&mut self, call: &Call, stream: Stream, context: u64) -> Vec<Arrival> {
        let event = || call.named("event").unwrap_or(0);
        match call.function.base() {
            "cuCtxSynchronize" => return self.take(|known| known.context == context),
            "cuStreamSynchronize" | "cuStreamQuery" => return self.stream_is_done(stream),
            "cuEventSynchronize" | "cuEventQuery" => return self.event_is_done(event()),
            "cuMemcpy" | "cuMemcpyDtoH" | "cuMemcpy2D" | "cuMemcpy3D" => return self.stream_is_done(stream),
            "cuEventRecord" | "cuEventRecordWithFlags" => self.record(event(), stream),
            "cuStreamWaitEvent" => self.wait(stream, event()),
            "cuStreamCreate" | "cuStreamCreateWithPriority" if call.named("flags").unwrap_or(0) & NON_BLOCKING != 0 => {
                // SAFETY: the driver has put the new stream there.
                self.set_apart(unsafe { word(call.word(0), 8) }.unwrap_or(0));
            }
            // The call waits for the work that uses the memory.
            "cuMemHostUnregister" => {
                return self.take(|known| known.area.address == call.word(0) && known.name.starts_with("memory#"));
            }
            // A memset of page-locked memory: its bytes are written when the call returns, but other work of the stream
            // may not be complete.
            base if base.starts_with("cuMemset") && !call.function.is_asynchronous() => {
                let written = self.expected.iter().filter(|known| known.moment == self.now);
                // The write stays expected: a driver that did not wait has not written it yet.
                return written.filter(|known| known.name.starts_with("memory#")).cloned().collect();
            }
            _ => {}
        }
        Vec::new()
    }

    /// Returns the records that must be complete before the next work of a stream.
    pub fn before(&self, stream: Stream) -> Vec<usize> {
        let moments = self.reached(stream);
        self.expected.iter().filter(|known| known.is_reached(&moments)).map(|known| known.record).collect()
    }

    /// Registers a stream that the null stream does not wait for.
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
        self.take(|known| known.is_reached(&moments))
    }

    pub fn event_is_done(&mut self, event: u64) -> Vec<Arrival> {
        let moments = self.events.get(&event).cloned().unwrap_or_default();
        self.take(|known| known.is_reached(&moments))
    }

    fn take(&mut self, done: impl Fn(&Arrival) -> bool) -> Vec<Arrival> {
        let (mut done, expected): (Vec<_>, _) = std::mem::take(&mut self.expected).into_iter().partition(done);
        self.expected = expected;
        let mut last = HashMap::new();
        for arrival in &done {
            let moment = last.entry(arrival.area.address).or_insert(arrival.moment);
            *moment = (*moment).max(arrival.moment);
        }
        done.iter_mut().for_each(|arrival| arrival.covered = last[&arrival.area.address] > arrival.moment);
        done
    }
}

impl Arrival {
    fn is_reached(&self, moments: &Moments) -> bool {
        moments.get(&self.stream).is_some_and(|moment| self.moment <= *moment)
    }
}

/// Returns the stream in which a call queues its work.
pub fn stream_of(call: &Call, thread: u64) -> Stream {
    let config = call.named("config").filter(|_| call.function.base() == "cuLaunchKernelEx");
    // SAFETY: the configuration of the launch, which the driver has accepted.
    let in_config = config.and_then(|at| unsafe { value::<CUlaunchConfig>(at) });
    match in_config.map_or(call.named("stream"), |config| Some(config.hStream as u64)).unwrap_or(0) {
        2 => (0, thread),
        0 if call.function.is_per_thread() => (0, thread),
        0 | 1 => LEGACY,
        raw => (raw, 0),
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
        assert_eq!(records(arrivals.stream_is_done(SECOND)), [2]);
        assert_eq!(arrivals.before((0, 4)), [3]);
    }

    #[test]
    fn what_was_written_over_by_what_has_arrived_too_is_covered() {
        let mut arrivals = Arrivals::default();
        let expect =
            |arrivals: &mut Arrivals, record| arrivals.expect(FIRST, record, "to".into(), Area::line(64, 1), 7);
        expect(&mut arrivals, 1);
        expect(&mut arrivals, 2);
        arrivals.record(50, FIRST);
        expect(&mut arrivals, 3);
        let covered = |done: Vec<Arrival>| done.iter().map(|arrival| arrival.covered).collect::<Vec<_>>();
        assert_eq!(covered(arrivals.event_is_done(50)), [true, false]);
        assert_eq!(covered(arrivals.stream_is_done(FIRST)), [false]);
    }
}
