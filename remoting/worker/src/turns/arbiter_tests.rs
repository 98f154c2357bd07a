//! Tests the arbiter with simulated workers. Each worker has kernels of one length, and queues them as `places` does.

use super::{Arbiter, Member, Nanos, OVERTIME, Part, TURN, WHOLE, Word};
use std::collections::BTreeMap;

const MS: Nanos = 1_000_000;

/// The load of a simulated worker.
#[derive(Clone, Copy)]
struct Load {
    kernel: Nanos,
    /// The time for which the worker has something to launch. It is then idle for the time `idle`.
    busy: Nanos,
    idle: Nanos,
}

const BACKLOG: Load = Load { kernel: MS, busy: Nanos::MAX, idle: 0 };

struct Simulated {
    load: Load,
    turn: Option<u64>,
    asked: bool,
    yields: bool,
    /// The end of the running kernel, and the turn in which it was launched.
    ends: Option<(Nanos, u64)>,
    done: Nanos,
    /// The longest time that the worker has waited for a turn.
    starved: Nanos,
    asked_at: Nanos,
}

struct World {
    arbiter: Arbiter<char>,
    workers: BTreeMap<Member, Simulated>,
    now: Nanos,
    busy: Nanos,
    together: bool,
}

impl World {
    const STEP: Nanos = MS / 10;

    fn new(shares: &[(char, u32, u32)]) -> Self {
        let mut arbiter = Arbiter::new(0, 0);
        for (name, weight, limit) in shares {
            arbiter.set_share(*name, Part { weight: *weight, limit: *limit }, 0);
        }
        World { arbiter, workers: BTreeMap::new(), now: 0, busy: 0, together: false }
    }

    fn join(&mut self, member: Member, share: char, load: Load) {
        assert!(self.arbiter.join(member, share, self.now));
        let simulated =
            Simulated { load, turn: None, asked: false, yields: false, ends: None, done: 0, starved: 0, asked_at: 0 };
        self.workers.insert(member, simulated);
    }

    fn run(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += Self::STEP;
        let now = self.now;
        for (member, worker) in &mut self.workers {
            let load = worker.load;
            let wants = now % load.busy.saturating_add(load.idle) < load.busy;
            if let Some((ends, turn)) = worker.ends
                && ends <= now
            {
                worker.ends = None;
                worker.done += load.kernel;
                if worker.turn != Some(turn) {
                    self.arbiter.done(*member, turn, worker.asked, now);
                }
            }
            match worker.turn {
                Some(turn) if worker.ends.is_none() && (worker.yields || !wants) => {
                    (worker.turn, worker.asked, worker.asked_at) = (None, wants, now);
                    self.arbiter.done(*member, turn, wants, now);
                }
                Some(turn) if worker.ends.is_none() => worker.ends = Some((now + load.kernel, turn)),
                // While its own kernel runs, the worker wants no turn.
                None if wants && !worker.asked && worker.ends.is_none() => {
                    (worker.asked, worker.asked_at) = (true, now);
                    self.arbiter.want(*member, now);
                }
                _ => {}
            }
        }
        self.arbiter.look(now);
        for (member, word) in self.arbiter.take_words() {
            let Some(worker) = self.workers.get_mut(&member) else { continue };
            match word {
                Word::Turn { turn, .. } => {
                    worker.starved = worker.starved.max(now - worker.asked_at);
                    (worker.turn, worker.asked, worker.yields) = (Some(turn), false, false);
                }
                Word::Yield(turn) if worker.turn == Some(turn) => worker.yields = true,
                Word::Over(turn) if worker.turn == Some(turn) => worker.turn = None,
                _ => {}
            }
        }
        let holders = self.workers.values().filter(|worker| worker.turn.is_some()).count();
        assert!(holders <= 1, "two have a turn");
        let running = self.workers.values().filter(|worker| worker.ends.is_some()).count();
        self.busy += if running > 0 { Self::STEP } else { 0 };
        self.together |= running > 1;
    }

    fn done(&self, member: Member) -> f64 {
        self.workers[&member].done as f64
    }

    fn used(&mut self) -> BTreeMap<char, Nanos> {
        self.arbiter.take_used(self.now).into_iter().collect()
    }
}

#[test]
fn backlogged_shares_get_their_weights() {
    for (left, right) in [(750, 250), (500, 500), (900, 100), (300, 100), (1, 1000)] {
        let mut world = World::new(&[('a', left, WHOLE), ('b', right, WHOLE)]);
        world.join(1, 'a', BACKLOG);
        world.join(2, 'b', Load { kernel: MS / 2, ..BACKLOG });
        world.run(20_000 * MS);
        let part = world.done(1) / (world.done(1) + world.done(2));
        let due = f64::from(left) / f64::from(left + right);
        assert!((part - due).abs() <= 0.02 * due.max(0.05), "{left}:{right} got {part}, not {due}");
        let used = world.used();
        assert!(used[&'a'] + used[&'b'] <= world.now, "no more time is charged than there was");
        assert!(!world.together);
    }
}

#[test]
fn workers_of_a_share_divide_what_it_gets() {
    let mut world = World::new(&[('a', 500, WHOLE), ('b', 500, WHOLE)]);
    (1..=4).for_each(|member| world.join(member, 'a', BACKLOG));
    world.join(5, 'b', BACKLOG);
    world.run(20_000 * MS);
    let all: f64 = (1..=4).map(|member| world.done(member)).sum();
    assert!((all / world.done(5) - 1.0).abs() < 0.02, "four workers are not worth four shares");
    assert!((1..=4).all(|member| (world.done(member) / all - 0.25).abs() < 0.01));
}

#[test]
fn what_one_leaves_the_others_get() {
    let mut world = World::new(&[('a', 900, WHOLE), ('b', 100, WHOLE)]);
    world.join(1, 'a', Load { kernel: MS, busy: 0, idle: Nanos::MAX });
    world.join(2, 'b', BACKLOG);
    world.run(1_000 * MS);
    assert!(world.busy >= 990 * MS, "an idle neighbour costs nothing: {}", world.busy);
    assert_eq!(world.workers[&2].starved, 0);
}

#[test]
fn alone_nobody_drains() {
    let mut arbiter = Arbiter::new(0, 0);
    arbiter.set_share('a', Part { weight: 100, limit: WHOLE }, 0);
    arbiter.join(1, 'a', 0);
    arbiter.want(1, 0);
    assert_eq!(arbiter.take_words(), [(1, Word::Turn { turn: 1, sharers: false })]);
    assert_eq!(arbiter.patience(), None, "nothing is looked at again");
    arbiter.look(1_000 * TURN);
    assert_eq!(arbiter.take_words(), []);
    assert_eq!(arbiter.take_used(1_000 * TURN), [('a', 1_000 * TURN)]);
}

#[test]
fn a_share_back_from_idle_is_next_and_has_no_credit() {
    let mut world = World::new(&[('a', 500, WHOLE), ('b', 500, WHOLE), ('c', 500, WHOLE)]);
    world.join(1, 'a', BACKLOG);
    world.join(2, 'b', BACKLOG);
    world.run(1_000 * MS);
    // The third share was not present for a second, and then wants as much as the others.
    world.join(3, 'c', BACKLOG);
    let (before, others) = (world.now, world.done(1) + world.done(2));
    while world.done(3) == 0.0 {
        world.step();
    }
    assert!(world.now - before <= TURN + 3 * MS, "{}", world.now - before);
    world.run(300 * MS);
    let part = world.done(3) / (world.done(1) + world.done(2) - others + world.done(3));
    assert!((part - 1.0 / 3.0).abs() < 0.05, "{part}");
}

#[test]
fn a_limit_holds_even_alone() {
    for limit in [100, 250, 500, 900] {
        let mut world = World::new(&[('a', limit, limit)]);
        world.join(1, 'a', BACKLOG);
        world.run(20_000 * MS);
        let part = world.used()[&'a'] as f64 / world.now as f64;
        assert!((part - f64::from(limit) / 1000.0).abs() < 0.02, "{limit}: {part}");
    }
}

#[test]
fn what_a_limited_share_leaves_is_no_credit() {
    let mut world = World::new(&[('a', 500, 100), ('b', 500, WHOLE), ('c', 500, WHOLE)]);
    world.join(1, 'a', BACKLOG);
    world.join(2, 'b', BACKLOG);
    world.run(10_000 * MS);
    assert!((world.done(1) / world.now as f64 - 0.1).abs() < 0.01);
    let b = world.done(2);
    world.join(3, 'c', BACKLOG);
    world.run(1_000 * MS);
    assert!(((world.done(2) - b) / world.done(3) - 1.0).abs() < 0.1, "a newcomer stands where the others do");
    // This is also true after the limit of `a` was removed.
    world.arbiter.set_share('a', Part { weight: 500, limit: WHOLE }, world.now);
    let before = [1, 2, 3].map(|member| world.done(member));
    world.run(900 * MS);
    let each = [1, 2, 3].map(|member| (world.done(member) - before[member as usize - 1]) / (900 * MS) as f64);
    assert!(each.iter().all(|part| (part - 1.0 / 3.0).abs() < 0.05), "{each:?}");
}

#[test]
fn a_kernel_that_outlasts_its_turn_is_a_debt() {
    let mut world = World::new(&[('a', 500, WHOLE), ('b', 500, WHOLE)]);
    world.join(1, 'a', Load { kernel: 200 * MS, ..BACKLOG });
    world.join(2, 'b', BACKLOG);
    world.run(20_000 * MS);
    assert!(world.together, "the other runs beside it after its turn was passed on");
    assert!(world.workers[&2].starved <= TURN + OVERTIME + 2 * MS, "{}", world.workers[&2].starved);
    let used = world.used();
    let part = used[&'a'] as f64 / (used[&'a'] + used[&'b']) as f64;
    assert!((part - 0.5).abs() < 0.02, "{part}");
}

#[test]
fn a_worker_that_is_gone_has_no_turn() {
    let mut arbiter = Arbiter::new(7, 0);
    for (member, share) in [(1, 'a'), (2, 'b')] {
        arbiter.set_share(share, Part { weight: 500, limit: WHOLE }, 0);
        arbiter.join(member, share, 0);
        arbiter.want(member, 0);
    }
    assert_eq!(arbiter.take_words(), [(1, Word::Turn { turn: 8, sharers: false }), (1, Word::Sharers(true))]);
    arbiter.leave(1, MS);
    assert_eq!(arbiter.take_words(), [(2, Word::Turn { turn: 9, sharers: false })], "at once");
    arbiter.done(2, 8, false, 2 * MS);
    assert_eq!(arbiter.take_words(), [], "that was another's turn");
    arbiter.forget_share(&'b', 2 * MS);
    assert_eq!((arbiter.patience(), arbiter.join(3, 'b', 2 * MS)), (None, false));
}

#[test]
fn a_debt_outlives_the_worker_that_made_it() {
    let mut world = World::new(&[('a', 100, WHOLE), ('b', 900, WHOLE)]);
    world.join(1, 'a', Load { kernel: 500 * MS, ..BACKLOG });
    world.join(2, 'b', BACKLOG);
    world.run(400 * MS);
    world.arbiter.leave(1, world.now);
    world.workers.remove(&1);
    world.join(3, 'a', BACKLOG);
    let before = world.done(2);
    world.run(100 * MS);
    assert!(world.done(3) < 0.02 * (world.done(2) - before), "a new worker does not begin anew");
}

/// Simulates two jobs, each with a rank on both GPUs. A kernel of a rank ends only when the other rank's kernel runs
/// too.
#[test]
fn jobs_of_two_ranks_do_not_hold_each_other() {
    let mut gpus = [0, 1].map(|_| {
        let mut arbiter = Arbiter::new(0, 0);
        for job in ['x', 'y'] {
            arbiter.set_share(job, Part { weight: 500, limit: WHOLE }, 0);
        }
        arbiter
    });
    // The jobs arrive at the GPUs in opposite orders, so that each has the turn that the other one needs.
    for (gpu, order) in [['x', 'y'], ['y', 'x']].into_iter().enumerate() {
        for job in order {
            gpus[gpu].join(job as Member, job, 0);
            gpus[gpu].want(job as Member, 0);
        }
    }
    let mut launched: BTreeMap<(usize, Member), u64> = BTreeMap::new();
    let mut finished: BTreeMap<Member, u32> = BTreeMap::new();
    for step in 0..10_000 {
        let now = step * MS / 10;
        for (gpu, arbiter) in gpus.iter_mut().enumerate() {
            arbiter.look(now);
            for (member, word) in arbiter.take_words() {
                if let Word::Turn { turn, .. } = word {
                    launched.entry((gpu, member)).or_insert(turn);
                }
            }
        }
        for member in ['x' as Member, 'y' as Member] {
            let both = [0, 1].map(|gpu| launched.get(&(gpu, member)).copied());
            if let [Some(first), Some(second)] = both {
                *finished.entry(member).or_default() += 1;
                for (gpu, turn) in [first, second].into_iter().enumerate() {
                    launched.remove(&(gpu, member));
                    gpus[gpu].done(member, turn, true, now);
                }
            }
        }
    }
    assert!(finished.values().all(|times| *times >= 20) && finished.len() == 2, "{finished:?}");
}

#[test]
fn who_waits_for_a_kernel_of_its_own_that_never_ends_gets_turns() {
    let mut arbiter = Arbiter::new(0, 0);
    for (member, share) in [(1, 'a'), (2, 'b')] {
        arbiter.set_share(share, Part { weight: 500, limit: WHOLE }, 0);
        arbiter.join(member, share, 0);
        arbiter.want(member, 0);
    }
    // The first turn of `a` never ends. Both shares want more, and end each later turn after 5 ms.
    let (mut first, mut ends, mut turns) = (None, None, BTreeMap::<Member, u32>::new());
    for step in 0..20_000 {
        let now = step * MS / 10;
        if let Some((member, turn, at)) = ends
            && now >= at
        {
            arbiter.done(member, turn, true, now);
            ends = None;
        }
        arbiter.look(now);
        for (member, word) in arbiter.take_words() {
            match word {
                Word::Turn { turn, .. } if member == 1 && first.is_none() => first = Some(turn),
                Word::Turn { turn, .. } => {
                    *turns.entry(member).or_default() += 1;
                    ends = Some((member, turn, now + 5 * MS));
                }
                Word::Over(_) => arbiter.want(member, now),
                _ => {}
            }
        }
    }
    assert!(turns.values().all(|times| *times > 100) && turns.len() == 2, "{turns:?}");
}

/// A small pseudorandom generator with a fixed recurrence, so that a failing seed can be repeated.
struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn whoever_comes_and_goes_nobody_starves_and_nothing_is_left_idle() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let names = ['a', 'b', 'c', 'd'];
        let parts = names.map(|name| (name, 50 + random.below(950) as u32, WHOLE));
        let mut world = World::new(&parts);
        for (member, name) in names.into_iter().enumerate() {
            let kernel = World::STEP * (1 + random.below(100));
            let (busy, idle) = match random.below(3) {
                0 => (Nanos::MAX, 0),
                _ => (MS * (1 + random.below(40)), MS * random.below(60)),
            };
            world.join(member as Member, name, Load { kernel, busy, idle });
        }
        for _ in 0..20 {
            world.run(MS * random.below(300));
            if random.below(3) == 0
                && let Some(member) = world.workers.keys().nth(random.below(4) as usize).copied()
            {
                let name = world.arbiter.members[&member].share;
                let Simulated { load, .. } = world.workers.remove(&member).expect("it is there");
                world.arbiter.leave(member, world.now);
                world.join(100 + random.below(1 << 40), name, load);
            }
            let waits = world.arbiter.shares.values().any(|share| !share.waiting.is_empty());
            assert!(!waits || world.arbiter.turn.is_some(), "seed {seed}: somebody waits for an idle GPU");
        }
        let used: Nanos = world.used().values().sum();
        assert!(used <= world.now, "seed {seed}: {used} of {}", world.now);
        // With weights from 50 to 1000, the share with the least weight gets about every sixtieth turn.
        world.run(2_000 * MS);
        assert!(world.workers.values().all(|worker| worker.done > 0), "seed {seed}: one starves");
    }
}
