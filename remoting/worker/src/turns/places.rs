//! A worker's turns at the GPUs of its lease, and its launches in these turns. Pure. `asking` has the socket, and
//! `order::turns` is used by the session.

use super::estimates::Estimates;
use crate::driver::Handle;
use crate::packets::{Said, Told};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Limit on the estimated time of queued work if other shares may want the GPU, because they wait until the work is
/// done.
const MOST_QUEUED: Duration = Duration::from_millis(2);
/// Limit on the launches that exceed `MOST_QUEUED` at a time, if nothing completes.
const MOST_BEYOND: u32 = 1024;
/// The estimated time of a batch. It is a fraction of the queued work, so that a completion is found before the GPU
/// runs out of work.
const BATCH: Duration = Duration::from_micros(500);
/// Limit on the launches of a batch. `completer` adds a marker after the same number of operations.
const MOST_IN_BATCH: u32 = 64;
/// The time that a worker keeps a turn without work. Most programs launch again soon after they synchronise.
const LINGER: Duration = Duration::from_micros(200);
/// The time without any completion after which queued work may be waiting for work that is not queued. Then one more
/// launch is allowed, after the same time again two more, and so on. Not all are allowed at once, because the cause may
/// also be a long kernel or a busy machine.
const STUCK: Duration = Duration::from_millis(20);

/// The launches of one turn in a stream. Their completion is reported together.
#[derive(Debug)]
pub struct Batch {
    stream: u64,
    device: u32,
    turn: u64,
    launches: Vec<(Handle, u32)>,
    count: u32,
    expected: Duration,
    since: Instant,
}

/// The state of one GPU.
#[derive(Debug, Default)]
struct Place {
    turn: Option<u64>,
    yields: bool,
    sharers: bool,
    /// Whether a turn was requested and has not been given.
    asked: bool,
    /// Whether a launch is waiting.
    wants: bool,
    /// The estimated time of this turn's launches that are not known to be complete.
    queued: Duration,
    /// The number of incomplete batches, by turn.
    unfinished: BTreeMap<u64, usize>,
    idle_since: Option<Instant>,
    /// The work that has completed since the last update of the estimates, and the time at which the first of it began.
    finished: Vec<(Handle, u32)>,
    began: Option<Instant>,
    /// The time of the last completion, or of the last launch while nothing ran.
    moved: Option<Instant>,
    /// The number of launches beyond the limit that were last allowed, the number of them that are left, and the time
    /// at which they were allowed.
    beyond: u32,
    spare: u32,
    stuck: Option<Instant>,
}

impl Place {
    fn runs(&self) -> bool {
        self.turn.is_some_and(|turn| self.unfinished.contains_key(&turn))
    }

    fn is_full(&self) -> bool {
        self.sharers && self.queued >= MOST_QUEUED
    }

    /// Returns the time at which launches beyond the limit become allowed.
    fn stuck_at(&self) -> Option<Instant> {
        self.moved.filter(|_| self.runs()).map(|moved| self.stuck.map_or(moved, |stuck| stuck.max(moved)) + STUCK)
    }

    /// Returns whether a launch beyond the limit is allowed, and counts it.
    fn overflow(&mut self, now: Instant) -> bool {
        if self.stuck_at().is_some_and(|at| now >= at) {
            self.beyond = (2 * self.beyond).clamp(1, MOST_BEYOND);
            (self.spare, self.stuck) = (self.beyond, Some(now));
        }
        let may = self.spare > 0;
        self.spare -= u32::from(may);
        may
    }

    /// Ends the worker's turn in this state. The arbiter already knows that the turn has ended.
    fn lose_turn(&mut self) {
        (self.turn, self.yields, self.idle_since, self.queued) = (None, false, None, Duration::ZERO);
    }
}

#[derive(Debug, Default)]
pub struct Places {
    places: BTreeMap<u32, Place>,
    /// For each stream, the batch to which launches are added.
    open: HashMap<u64, Batch>,
    closed: HashMap<u64, Batch>,
    last_batch: u64,
    estimates: Estimates,
    /// The messages to send to the arbiter.
    pub said: Vec<Said>,
}

impl Places {
    /// Whether a kernel may be launched. If not, records that the worker wants a turn, unless the launch would only
    /// wait for work of an earlier turn.
    pub fn may_launch(&mut self, device: u32, stream: u64, now: Instant) -> bool {
        let place = self.places.entry(device).or_default();
        let batches = self.closed.values().chain(self.open.get(&stream));
        if batches.filter(|batch| batch.stream == stream).any(|batch| place.turn != Some(batch.turn)) {
            return false;
        }
        let may = place.turn.is_some() && !place.yields && (!place.is_full() || place.overflow(now));
        place.wants |= !may;
        may
    }

    /// Records that the worker wants a turn for a launch that also waits for something else.
    pub fn want(&mut self, device: u32) {
        self.places.entry(device).or_default().wants = true;
    }

    /// Records work that was launched. Returns whether the batch of its stream should be closed.
    pub fn launched(&mut self, device: u32, stream: u64, work: Handle, now: Instant) -> bool {
        let place = self.places.entry(device).or_default();
        let Some(turn) = place.turn else { return false };
        let expected = self.estimates.of(work);
        if !place.runs() {
            place.moved = Some(now);
        }
        place.queued += expected;
        let batch = self.open.entry(stream).or_insert_with(|| {
            *place.unfinished.entry(turn).or_default() += 1;
            Batch { stream, device, turn, launches: Vec::new(), count: 0, expected: Duration::ZERO, since: now }
        });
        batch.expected += expected;
        batch.count += 1;
        match batch.launches.iter_mut().find(|(known, _)| *known == work) {
            Some((_, count)) => *count += 1,
            None => batch.launches.push((work, 1)),
        }
        batch.count >= MOST_IN_BATCH || (place.sharers && batch.expected >= BATCH)
    }

    /// Closes the batch of a stream. Returns its number, which is passed to `complete` when the whole batch is
    /// complete.
    pub fn close(&mut self, stream: u64) -> Option<u64> {
        let batch = self.open.remove(&stream)?;
        self.last_batch += 1;
        self.closed.insert(self.last_batch, batch);
        Some(self.last_batch)
    }

    /// Returns the streams whose batch should be closed: the batch can get no more launches or, if `resting` is set,
    /// gets none for now.
    pub fn open(&self, resting: bool) -> Vec<u64> {
        let place = |batch: &Batch| self.places.get(&batch.device);
        let over = |batch: &Batch| place(batch).is_none_or(|place| place.yields || place.turn != Some(batch.turn));
        self.open.iter().filter(|(_, batch)| resting || over(batch)).map(|(stream, _)| *stream).collect()
    }

    /// Completes the batches of a stream that was destroyed, because no one else will report them.
    pub fn forget(&mut self, stream: u64, now: Instant) {
        self.close(stream);
        let lost: Vec<_> = self.closed.iter().filter(|(_, b)| b.stream == stream).map(|(number, _)| *number).collect();
        lost.into_iter().for_each(|number| self.complete(number, now));
    }

    /// Records that a batch is complete.
    pub fn complete(&mut self, number: u64, now: Instant) {
        let Some(batch) = self.closed.remove(&number) else { return };
        let Some(place) = self.places.get_mut(&batch.device) else { return };
        // The batch began when it was launched, or when the work before it was complete.
        let began = place.moved.map_or(batch.since, |moved| moved.max(batch.since));
        place.began.get_or_insert(began);
        place.finished.extend(batch.launches);
        place.moved = Some(now);
        (place.beyond, place.spare) = (0, 0);
        if place.turn == Some(batch.turn) {
            place.queued = place.queued.saturating_sub(batch.expected);
        }
        let Some(left) = place.unfinished.get_mut(&batch.turn) else { return };
        *left -= 1;
        if *left == 0 {
            place.unfinished.remove(&batch.turn);
            if place.turn != Some(batch.turn) {
                self.said.push(Said::Done { device: batch.device, turn: batch.turn, more: place.asked });
            }
        }
    }

    /// Lets all waiting launches try again, which also request their turns again.
    pub fn retry(&mut self) {
        self.places.values_mut().for_each(|place| place.wants = false);
    }

    /// Handles a message of the arbiter. Returns whether launches may be possible that were not possible before.
    pub fn hear(&mut self, told: Told) -> bool {
        match told {
            Told::Begin => {
                for place in self.places.values_mut() {
                    place.lose_turn();
                    place.asked = false;
                }
                false
            }
            Told::Turn { device, turn, sharers } => {
                let place = self.places.entry(device).or_default();
                place.lose_turn();
                (place.turn, place.sharers, place.asked) = (Some(turn), sharers, false);
                true
            }
            Told::Sharers { device, present } => {
                self.places.entry(device).or_default().sharers = present;
                true
            }
            Told::Yield { device, turn } => {
                let place = self.places.entry(device).or_default();
                place.yields |= place.turn == Some(turn);
                false
            }
            Told::Over { device, turn } => {
                let place = self.places.entry(device).or_default();
                if place.turn == Some(turn) {
                    place.lose_turn();
                    if !place.unfinished.contains_key(&turn) {
                        self.said.push(Said::Done { device, turn, more: false });
                    }
                }
                // A launch that waits for unfinished work of an earlier turn wants no turn.
                true
            }
        }
    }

    /// Ends turns that have no more work, and requests the turns that are wanted. `holds` means that no waiting launch
    /// may run.
    pub fn look(&mut self, now: Instant, holds: bool) {
        for (device, place) in &mut self.places {
            if let Some(began) = place.began.take() {
                self.estimates.learn(&std::mem::take(&mut place.finished), now.saturating_duration_since(began));
            }
            let (device, wants) = (*device, place.wants && !holds);
            if let Some(turn) = place.turn.filter(|_| !place.runs()) {
                let since = *place.idle_since.get_or_insert(now);
                let idle = !wants && now >= since + LINGER;
                if place.yields || idle {
                    place.lose_turn();
                    place.asked = wants;
                    self.said.push(Said::Done { device, turn, more: wants });
                }
            } else {
                place.idle_since = None;
            }
            if place.turn.is_none() && wants && !place.asked {
                place.asked = true;
                self.said.push(Said::Want { device });
            }
        }
    }

    /// Returns the time until `look` or a waiting launch has something to do without another event, or `None`.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let when = |place: &Place| {
            let idle = place.idle_since.map(|since| since + LINGER);
            let stuck = place.stuck_at().filter(|at| place.wants && *at > now);
            idle.into_iter().chain(stuck).min()
        };
        self.places.values().filter_map(when).min().map(|at| at.saturating_duration_since(now))
    }

    /// Whether a launch that was held back may run now although nothing has completed.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let waits = |place: &Place| place.wants && place.turn.is_some() && !place.yields && place.is_full();
        let stuck = |place: &Place| waits(place) && place.stuck_at().is_some_and(|at| now >= at);
        self.places.values().any(stuck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Handle = Handle(1);
    const MS: Duration = Duration::from_millis(1);

    fn turn(places: &mut Places, turn: u64) {
        assert!(places.hear(Told::Turn { device: 0, turn, sharers: true }));
    }

    /// Launches as many kernels as are allowed. Returns their number.
    fn fill(places: &mut Places, now: Instant) -> u32 {
        let mut count = 0;
        while places.may_launch(0, 9, now) {
            count += 1;
            assert!(count < 10_000, "no end");
            if places.launched(0, 9, WORK, now) {
                places.close(9);
            }
        }
        count
    }

    fn said(places: &mut Places) -> Vec<Said> {
        std::mem::take(&mut places.said)
    }

    #[test]
    fn nothing_is_launched_before_the_turn_and_little_is_queued_in_it() {
        let (mut places, now) = (Places::default(), Instant::now());
        assert!(!places.may_launch(0, 9, now));
        places.look(now, false);
        places.look(now, false);
        assert_eq!(said(&mut places), [Said::Want { device: 0 }], "once");
        turn(&mut places, 5);
        let first = fill(&mut places, now);
        assert!((1..=20).contains(&first), "an unknown kernel is queued {first} times");
        // The estimates learn that a kernel takes 10 us. Two hundred such kernels take 2 ms.
        let mut at = now;
        for round in 0..100 {
            let Some(number) = (places.last_batch > round).then_some(round + 1) else { break };
            at += Duration::from_micros(10) * places.closed[&number].count;
            places.complete(number, at);
            places.look(at, false);
            fill(&mut places, at);
        }
        let queued = places.queued_launches();
        assert!((150..=270).contains(&queued), "{queued}");
    }

    impl Places {
        fn queued_launches(&self) -> u32 {
            self.closed.values().chain(self.open.values()).map(|batch| batch.count).sum()
        }
    }

    #[test]
    fn a_turn_ends_when_its_work_is_complete() {
        let (mut places, now) = (Places::default(), Instant::now());
        turn(&mut places, 5);
        assert!(places.may_launch(0, 9, now));
        places.launched(0, 9, WORK, now);
        places.hear(Told::Yield { device: 0, turn: 5 });
        assert!(!places.may_launch(0, 9, now));
        places.look(now, false);
        assert_eq!(said(&mut places), []);
        let number = places.close(9).expect("one is open");
        places.complete(number, now + MS);
        places.look(now + MS, false);
        assert_eq!(said(&mut places), [Said::Done { device: 0, turn: 5, more: true }]);
        places.look(now + MS, false);
        assert_eq!(said(&mut places), [], "it has asked");
    }

    #[test]
    fn a_turn_without_work_is_given_back() {
        let (mut places, now) = (Places::default(), Instant::now());
        turn(&mut places, 5);
        places.look(now, false);
        assert_eq!(places.patience(now), Some(LINGER));
        places.look(now + LINGER, false);
        assert_eq!(said(&mut places), [Said::Done { device: 0, turn: 5, more: false }]);
        // A waiting launch is not a reason to keep the turn while no launch may run.
        turn(&mut places, 6);
        places.hear(Told::Yield { device: 0, turn: 6 });
        assert!(!places.may_launch(0, 9, now));
        places.look(now, true);
        assert_eq!(said(&mut places), [Said::Done { device: 0, turn: 6, more: false }]);
        places.look(now, false);
        assert_eq!(said(&mut places), [Said::Want { device: 0 }], "until it may");
    }

    #[test]
    fn what_is_queued_may_wait_for_what_is_not() {
        let (mut places, now) = (Places::default(), Instant::now());
        turn(&mut places, 5);
        fill(&mut places, now);
        assert!(!places.is_stuck(now + STUCK - MS));
        assert_eq!(places.patience(now), Some(STUCK));
        let mut launched = Vec::new();
        for round in 1..=4 {
            let now = now + round * STUCK;
            assert!(places.is_stuck(now));
            launched.push(fill(&mut places, now));
            assert!(!places.is_stuck(now));
        }
        assert_eq!(launched, [1, 2, 4, 8], "little for a kernel that is only long, enough soon for one that waits");
    }

    #[test]
    fn a_turn_that_was_passed_on_is_done_later() {
        let (mut places, now) = (Places::default(), Instant::now());
        turn(&mut places, 5);
        let count = fill(&mut places, now);
        assert!(count > 0);
        let open: Vec<_> = places.open(true).into_iter().filter_map(|stream| places.close(stream)).collect();
        assert!(open.len() <= 1);
        places.hear(Told::Over { device: 0, turn: 5 });
        places.retry();
        assert!(!places.may_launch(0, 9, now));
        places.look(now, false);
        assert_eq!(said(&mut places), [], "more in the same stream is no reason for a turn");
        assert!(!places.may_launch(0, 10, now));
        places.look(now, false);
        assert_eq!(said(&mut places), [Said::Want { device: 0 }]);
        turn(&mut places, 6);
        assert!(!places.may_launch(0, 9, now), "behind what still runs it would only wait");
        assert!(places.may_launch(0, 10, now), "elsewhere it need not");
        for number in 1..=open.first().copied().unwrap_or(places.last_batch) {
            places.complete(number, now + MS);
        }
        assert_eq!(said(&mut places), [Said::Done { device: 0, turn: 5, more: false }]);
    }

    #[test]
    fn a_new_arbiter_is_asked_anew() {
        let (mut places, now) = (Places::default(), Instant::now());
        assert!(!places.may_launch(0, 9, now));
        places.look(now, false);
        places.hear(Told::Begin);
        places.look(now, false);
        assert_eq!(said(&mut places), [Said::Want { device: 0 }; 2]);
    }
}
