//! Tests the scheduler against the definition of its modes, for every pair of modes.

use super::{Mode, Scheduler};
use std::collections::{BTreeMap, BTreeSet};

type Keys = Vec<(u8, Mode)>;

/// Returns the entry of the table in `Mode`'s documentation for two commands in one key.
fn pair_waits(later: Mode, earlier: Mode) -> bool {
    match earlier {
        Mode::Exclusive => true,
        Mode::Shared => matches!(later, Mode::Exclusive | Mode::Observe),
        Mode::Observe | Mode::After => false,
    }
}

fn waits(later: &Keys, earlier: &Keys) -> bool {
    later.iter().any(|(k, m)| earlier.iter().any(|(k2, m2)| k == k2 && pair_waits(*m, *m2)))
}

/// A small pseudorandom generator with a fixed recurrence, so that a failing seed can be repeated.
struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Decides independently of the scheduler: a command may run when no earlier open command is left that it must wait
/// for.
fn allowed(seq: u64, open: &BTreeMap<u64, Keys>, barriers: &BTreeSet<u64>) -> bool {
    open.range(..seq).all(|(earlier, keys)| !waits(&open[&seq], keys) && !barriers.contains(earlier))
}

#[test]
fn commands_run_exactly_when_the_definition_allows() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut scheduler = Scheduler::default();
        let mut open: BTreeMap<u64, Keys> = BTreeMap::new();
        let mut barriers = BTreeSet::new();
        let mut runnable = BTreeSet::new();
        for seq in 1..200u64 {
            let keys: Keys = (0..random.below(4))
                .map(|_| {
                    let mode = [Mode::Exclusive, Mode::Shared, Mode::Observe, Mode::After][random.below(4) as usize];
                    (random.below(5) as u8, mode)
                })
                .collect::<BTreeMap<u8, Mode>>()
                .into_iter()
                .collect();
            let must_wait = scheduler.must_wait(&keys);
            open.insert(seq, keys.clone());
            let now = scheduler.open(seq, keys);
            assert_eq!(now, allowed(seq, &open, &barriers), "seed {seed} seq {seq}");
            assert_eq!(must_wait, !now);
            if now {
                runnable.insert(seq);
            }
            // At most one barrier is open at a time, as in a session.
            if random.below(40) == 0 && barriers.is_empty() {
                scheduler.set_barrier(seq);
                barriers.insert(seq);
            }
            while random.below(3) > 0 && !runnable.is_empty() {
                let pick = *runnable.iter().nth(random.below(runnable.len() as u64) as usize).unwrap();
                finish(pick, &mut scheduler, &mut open, &mut barriers, &mut runnable);
            }
            let expected: BTreeSet<u64> = open.keys().copied().filter(|s| allowed(*s, &open, &barriers)).collect();
            assert_eq!(runnable, expected, "seed {seed} after {seq}");
        }
        while let Some(pick) = runnable.first().copied() {
            finish(pick, &mut scheduler, &mut open, &mut barriers, &mut runnable);
        }
        assert!(open.is_empty() && scheduler.is_idle(), "seed {seed}: a command was never run");
    }
}

fn finish(
    seq: u64,
    scheduler: &mut Scheduler<u8>,
    open: &mut BTreeMap<u64, Keys>,
    barriers: &mut BTreeSet<u64>,
    runnable: &mut BTreeSet<u64>,
) {
    scheduler.finish(seq);
    open.remove(&seq);
    barriers.remove(&seq);
    runnable.remove(&seq);
    let mut last = 0;
    while let Some(ready) = scheduler.next_ready() {
        assert!(ready > last, "ready commands come in order");
        last = ready;
        runnable.insert(ready);
    }
}

#[test]
fn a_barrier_that_is_set_late_holds_only_what_comes_after() {
    let mut scheduler = Scheduler::default();
    assert!(scheduler.open(1, vec![(1u8, Mode::Exclusive)]));
    assert!(scheduler.open(2, vec![(2, Mode::Exclusive)]));
    scheduler.set_barrier(1);
    assert!(!scheduler.open(3, vec![(3, Mode::Shared)]));
    scheduler.finish(1);
    assert_eq!(scheduler.next_ready(), Some(3));
}

#[test]
fn legacy_commands_are_barriers_between_blocking_streams() {
    const LEGACY: u8 = 0;
    let stream = |n: u8| vec![(n, Mode::Exclusive), (LEGACY, Mode::Shared)];
    let legacy = || vec![(9, Mode::Exclusive), (LEGACY, Mode::Exclusive)];
    let mut scheduler = Scheduler::default();
    assert!(scheduler.open(1, stream(1)));
    assert!(scheduler.open(2, stream(2)), "another blocking stream continues");
    assert!(!scheduler.open(3, legacy()));
    assert!(!scheduler.open(4, stream(3)), "behind the legacy command");
    assert!(scheduler.open(5, vec![(4, Mode::Exclusive)]), "a non-blocking stream continues");
    scheduler.finish(1);
    assert_eq!(scheduler.next_ready(), None);
    scheduler.finish(2);
    assert_eq!(scheduler.next_ready(), Some(3));
    scheduler.finish(3);
    assert_eq!(scheduler.next_ready(), Some(4));
}
