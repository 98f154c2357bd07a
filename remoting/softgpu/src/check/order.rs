//! The order between operations that the program's calls create. It does not depend on which work has already run.

use super::clocks::{Clock, PARTS, Point, Step};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Clone, Default)]
struct Track {
    count: u64,
    /// The clock of other tracks that comes before this track's next operation.
    past: Arc<Clock>,
}

/// An operation's point on its track, and the clock before it.
#[derive(Clone)]
pub struct Begun {
    pub point: Point,
    /// The clock of all points that happened before the operation.
    pub past: Arc<Clock>,
}

#[derive(Default)]
pub struct Order {
    tracks: Vec<Track>,
    queues: HashMap<u64, u32>,
    /// The track of each branch of an executable graph, by the graph's id and the branch's index.
    branches: HashMap<(usize, usize), u32>,
    /// The clock at the end of each executable graph's latest launch.
    launches: HashMap<usize, Clock>,
    events: HashMap<usize, Clock>,
    /// The joined clock of the releasing writes to each word, by address.
    words: HashMap<u64, Clock>,
    /// The clocks of destroyed streams, by the default stream's queue. That queue's next operation comes after them.
    gone: HashMap<u64, Clock>,
    /// The memory that pools have got back, by first address: length in bytes and the clock before the free.
    freed: BTreeMap<u64, (u64, Clock)>,
    /// The clocks that running operations found, by track.
    found: HashMap<u32, Clock>,
    /// The clock of all work that the program on the host knows to be finished.
    host: Clock,
}

fn join(past: &mut Arc<Clock>, other: &Clock) {
    if !past.covers(other) {
        Arc::make_mut(past).join(other);
    }
}

impl Order {
    fn new_track(&mut self) -> u32 {
        self.tracks.push(Track::default());
        (self.tracks.len() - 1) as u32
    }

    fn track(&mut self, queue: u64) -> u32 {
        match self.queues.get(&queue) {
            Some(&track) => track,
            None => {
                let track = self.new_track();
                self.queues.insert(queue, track);
                track
            }
        }
    }

    /// Returns the clock at the end of all operations that the track has so far.
    fn end(&self, track: u32) -> Clock {
        let Track { count, past } = &self.tracks[track as usize];
        let mut clock = Clock::clone(past);
        clock.add(Point { track, epoch: count << PARTS }.end());
        clock
    }

    fn next(&mut self, track: u32) -> Begun {
        let own = &mut self.tracks[track as usize];
        own.count += 1;
        Begun { point: Point { track, epoch: own.count << PARTS }, past: Arc::clone(&own.past) }
    }

    pub fn begin(&mut self, queue: u64, after: &[u64]) -> Begun {
        let track = self.track(queue);
        for &other in after {
            let other = self.track(other);
            let end = self.end(other);
            join(&mut self.tracks[track as usize].past, &end);
        }
        if let Some(gone) = self.gone.get(&queue) {
            join(&mut self.tracks[track as usize].past, gone);
        }
        join(&mut self.tracks[track as usize].past, &self.host);
        self.next(track)
    }

    pub fn graph(&mut self, executable: usize, queue: u64, after: &[u64], steps: &[Step]) -> Vec<Begun> {
        let track = self.track(queue);
        self.begin(queue, after);
        if let Some(last) = self.launches.get(&executable) {
            join(&mut self.tracks[track as usize].past, last);
        }
        let start = self.end(track);
        let mut begun: Vec<Begun> = Vec::with_capacity(steps.len());
        let (mut ends, mut branch_of): (Vec<Clock>, Vec<usize>) = (Vec::new(), Vec::new());
        // The index of the last step of each branch.
        let mut tails: Vec<usize> = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let continued = step.after.iter().find(|&&before| tails[branch_of[before]] == before);
            let branch = continued.map_or(tails.len(), |&before| branch_of[before]);
            if branch == tails.len() {
                tails.push(index);
            }
            tails[branch] = index;
            branch_of.push(branch);
            let branch_track = match self.branches.get(&(executable, branch)) {
                Some(&track) => track,
                None => {
                    let track = self.new_track();
                    self.branches.insert((executable, branch), track);
                    track
                }
            };
            let mut past = start.clone();
            step.after.iter().for_each(|&before| past.join(&ends[before]));
            if let Some(recorded) = step.waits.and_then(|event| self.events.get(&event)) {
                past.join(recorded);
            }
            self.tracks[branch_track as usize].past = Arc::new(past);
            begun.push(self.next(branch_track));
            ends.push(self.end(branch_track));
            if let Some(event) = step.records {
                self.events.insert(event, ends[index].clone());
            }
        }
        ends.iter().for_each(|end| join(&mut self.tracks[track as usize].past, end));
        let end = self.end(track);
        self.launches.insert(executable, end);
        begun
    }

    pub fn record(&mut self, event: usize, queue: u64) {
        let track = self.track(queue);
        let end = self.end(track);
        self.events.insert(event, end);
    }

    pub fn wait(&mut self, queue: u64, event: usize) {
        let track = self.track(queue);
        if let Some(recorded) = self.events.get(&event) {
            join(&mut self.tracks[track as usize].past, recorded);
        }
    }

    pub fn host_waited(&mut self, queue: u64) {
        let track = self.track(queue);
        let end = self.end(track);
        self.host.join(&end);
    }

    pub fn host_saw(&mut self, event: usize) {
        if let Some(recorded) = self.events.get(&event) {
            self.host.join(recorded);
        }
    }

    pub fn host(&self) -> &Clock {
        &self.host
    }

    pub fn host_joins(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    pub fn retire(&mut self, queue: u64, legacy: Option<u64>) {
        let track = self.track(queue);
        let end = self.end(track);
        if let Some(legacy) = legacy {
            self.gone.entry(legacy).or_default().join(&end);
        }
    }

    /// Orders the track's later operations after `clock`, which a running operation found.
    pub fn found(&mut self, track: u32, clock: &Clock) {
        join(&mut self.tracks[track as usize].past, clock);
        self.found.entry(track).or_default().join(clock);
    }

    /// Returns the clock that running operations of a track found. An operation that was queued earlier joins it when
    /// it starts.
    pub fn found_by(&self, track: u32) -> Option<&Clock> {
        self.found.get(&track)
    }

    /// Returns the joined clock of the releasing writes to a word, or `None` if there was none.
    pub fn word(&self, address: u64) -> Option<&Clock> {
        self.words.get(&address)
    }

    pub fn release(&mut self, address: u64, clock: &Clock) {
        self.words.entry(address).or_default().join(clock);
    }

    /// Records memory that a pool gets back, with the clock before the free.
    pub fn freed(&mut self, base: u64, len: u64, clock: Clock) {
        self.handed_out(base, len);
        self.freed.insert(base, (len, clock));
    }

    /// Removes a range from the memory that pools got back, and returns the joined clock of its frees.
    pub fn handed_out(&mut self, base: u64, len: u64) -> Clock {
        let (mut before, after) = (Clock::default(), base + len);
        while let Some((&start, &(size, _))) = self.freed.range(..after).next_back()
            && start + size > base
            && let Some((_, clock)) = self.freed.remove(&start)
        {
            before.join(&clock);
            for (from, to) in [(start, base), (after, start + size)] {
                if from < to {
                    self.freed.insert(from, (to - from, clock.clone()));
                }
            }
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_of_what_was_freed_is_after_its_free() {
        let mut order = Order::default();
        let clock = |epoch| {
            let mut clock = Clock::default();
            clock.add(Point { track: 0, epoch });
            clock
        };
        order.freed(0, 100, clock(1));
        // Takes the middle, so that a piece is left on each side. One of these pieces is then used and freed again.
        assert_eq!(order.handed_out(40, 20), clock(1));
        assert_eq!(order.handed_out(40, 20), Clock::default());
        order.freed(90, 30, clock(2));
        assert_eq!(order.handed_out(60, 20), clock(1));
        assert_eq!(order.handed_out(80, 40), clock(2));
        assert_eq!(order.handed_out(0, 200), clock(1));
        assert!(order.freed.is_empty());
    }
}
