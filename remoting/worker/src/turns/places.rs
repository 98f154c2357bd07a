//! A worker's turns at the GPUs of its lease, and its launches in them. Pure; `asking` has the socket, and
//! `order::turns` the session's side.

use super::estimates::Estimates;
use crate::driver::Handle;
use crate::packets::{Said, Told};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Limit on the estimated work that is queued where others may want the GPU: they wait for it.
const MOST_QUEUED: Duration = Duration::from_millis(2);
/// Limit on the launches beyond that at a time, if nothing completes.
const MOST_BEYOND: u32 = 1024;
/// Estimated work of a batch: completions are found in pieces of what is queued, so that the GPU does not run dry.
const BATCH: Duration = Duration::from_micros(500);
/// Limit on the launches of a batch, as many as `completer` marks by itself.
const MOST_IN_BATCH: u32 = 64;
/// Time for which a turn is kept without work: most programs that synchronise launch again at once.
const LINGER: Duration = Duration::from_micros(200);
/// If nothing completes for so long, queued work may wait for work that is not queued: then one more launch is allowed,
/// after the same time again two, and so on. The cause may as well be a long kernel, or a busy machine, so not all at
/// once.
const STUCK: Duration = Duration::from_millis(20);

/// Launches of one turn in a stream, whose completion is reported together.
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
    /// A turn was requested and has not come.
    asked: bool,
    /// A launch waits.
    wants: bool,
    /// Estimated time of this turn's launches that are not known to be complete.
    queued: Duration,
    /// Number of batches that are not complete, by turn.
    unfinished: BTreeMap<u64, usize>,
    idle_since: Option<Instant>,
    /// Work that completed since the last look, and when the first of it began.
    finished: Vec<(Handle, u32)>,
    began: Option<Instant>,
    /// When something completed last, or was launched while nothing ran.
    moved: Option<Instant>,
    /// Launches beyond the limit that were allowed when it last seemed stuck, how many of them are left, and when that
    /// was.
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

    /// Returns when launches beyond the limit are allowed.
    fn stuck_at(&self) -> Option<Instant> {
        self.moved.filter(|_| self.runs()).map(|moved| self.stuck.map_or(moved, |stuck| stuck.max(moved)) + STUCK)
    }

    /// Whether a launch beyond the limit is allowed.
    fn overflow(&mut self, now: Instant) -> bool {
        if self.stuck_at().is_some_and(|at| now >= at) {
            self.beyond = (2 * self.beyond).clamp(1, MOST_BEYOND);
            (self.spare, self.stuck) = (self.beyond, Some(now));
        }
        let may = self.spare > 0;
        self.spare -= u32::from(may);
        may
    }

    /// Ends the turn for this worker; the arbiter knows already.
    fn lose_turn(&mut self) {
        (self.turn, self.yields, self.idle_since, self.queued) = (None, false, None, Duration::ZERO);
    }
}

#[derive(Debug, Default)]
pub struct Places {
    places: BTreeMap<u32, Place>,
    /// The batch of each stream to which launches are added.
    open: HashMap<u64, Batch>,
    closed: HashMap<u64, Batch>,
    last_batch: u64,
    estimates: Estimates,
    /// Messages to send.
    pub said: Vec<Said>,
}

impl Places {
    /// Whether a kernel may be launched. If not, notes that a turn is wanted; but not for a launch that would only wait
    /// for work of an earlier turn.
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

    /// Notes that a launch waits for something other than its turn: it still wants the turn.
    pub fn want(&mut self, device: u32) {
        self.places.entry(device).or_default().wants = true;
    }

    /// Notes work that was launched. Returns whether the batch of its stream should be closed.
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

    /// Closes the batch of a stream. Returns its number, which `complete` gets when all of it is complete.
    pub fn close(&mut self, stream: u64) -> Option<u64> {
        let batch = self.open.remove(&stream)?;
        self.last_batch += 1;
        self.closed.insert(self.last_batch, batch);
        Some(self.last_batch)
    }

    /// Returns the streams whose batch should be closed: it can get no more launches or, if `resting`, gets none for
    /// now.
    pub fn open(&self, resting: bool) -> Vec<u64> {
        let place = |batch: &Batch| self.places.get(&batch.device);
        let over = |batch: &Batch| place(batch).is_none_or(|place| place.yields || place.turn != Some(batch.turn));
        self.open.iter().filter(|(_, batch)| resting || over(batch)).map(|(stream, _)| *stream).collect()
    }

    /// Completes the batches of a stream that is gone: nothing else will report them.
    pub fn forget(&mut self, stream: u64, now: Instant) {
        self.close(stream);
        let lost: Vec<_> = self.closed.iter().filter(|(_, b)| b.stream == stream).map(|(number, _)| *number).collect();
        lost.into_iter().for_each(|number| self.complete(number, now));
    }

    /// Notes that a batch is complete.
    pub fn complete(&mut self, number: u64, now: Instant) {
        let Some(batch) = self.closed.remove(&number) else { return };
        let Some(place) = self.places.get_mut(&batch.device) else { return };
        // It began when it was launched, or when the work before it was complete.
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

    /// Lets all waiting launches try again, and say again what they want.
    pub fn retry(&mut self) {
        self.places.values_mut().for_each(|place| place.wants = false);
    }

    /// Takes a message of the arbiter. Returns whether launches may be possible now that were not.
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
                // Launches behind unfinished work want no turn.
                true
            }
        }
    }

    /// Ends turns that have nothing more to do, and requests those that are wanted. `holds`: no launch that waits may
    /// run.
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

    /// Returns the time until `look` or a waiting launch has something to do, if nothing happens before.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let when = |place: &Place| {
            let idle = place.idle_since.map(|since| since + LINGER);
            let stuck = place.stuck_at().filter(|at| place.wants && *at > now);
            idle.into_iter().chain(stuck).min()
        };
        self.places.values().filter_map(when).min().map(|at| at.saturating_duration_since(now))
    }

    /// Whether a launch that was held back may go now, although nothing has completed.
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

    /// Launches as many kernels as are allowed.
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
        // It learns that a kernel takes 10 us: two hundred of them are 2 ms.
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
        // A waiting launch is no reason to keep the turn while nothing may run.
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
