//! Gives turns at one GPU: weighted fair queueing over shares, with a limit for each share. Pure; the caller passes the
//! time.
//!
//! A share's *virtual time* is the GPU time that the share has used, divided by its weight. The waiting share with the
//! least virtual time gets the next turn. Therefore shares that always want the GPU get it in proportion to their
//! weights, a kernel that runs longer than its turn is a debt, and no share starves. A share that was idle starts at
//! the least virtual time of the others, so that it is soon next but has no credit from its idle time. The workers of a
//! share take turns in their order of arrival.

use std::collections::{BTreeMap, VecDeque};

use crate::guard::defences::{Defence, stands};

pub type Nanos = u64;
/// A worker that takes turns.
pub type Member = u64;

/// The time in nanoseconds that a share may run while others wait.
pub const TURN: Nanos = 10_000_000;
/// The time that queued work may take after the end of a turn. After this time the next share gets its turn, and work
/// that still runs overlaps with it.
pub const OVERTIME: Nanos = TURN;
/// The whole time of a GPU. Parts are numbers of thousandths.
pub const WHOLE: u32 = 1000;

/// A share's part of the GPU's time, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The minimum part while the share wants the GPU, if all weights together are at most [`WHOLE`].
    pub weight: u32,
    /// The maximum part, even if no other share wants the GPU.
    pub limit: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    Turn { turn: u64, sharers: bool },
    Sharers(bool),
    Yield(u64),
    Over(u64),
}

#[derive(Debug)]
struct Share {
    part: Part,
    virtual_time: u128,
    /// The time that a limited share may still run. A negative value is a debt.
    allowance: i64,
    members: usize,
    waiting: VecDeque<Member>,
    /// The number of the share's last turn.
    served: u64,
    used: Nanos,
    /// The time that work of the share's earlier turns has run during the turns of others. It is charged when some of
    /// that work is complete. Until then the share still needs turns, because running work may wait for work that was
    /// not launched yet.
    owed: Nanos,
}

impl Share {
    fn is_limited(&self) -> bool {
        self.part.limit < WHOLE
    }

    /// Returns the part of its allowance that a limited share uses in a whole turn, during which the allowance also
    /// grows.
    fn ration(&self) -> i64 {
        (TURN / u64::from(WHOLE) * u64::from(WHOLE - self.part.limit.min(WHOLE))) as i64
    }

    fn is_allowed(&self) -> bool {
        !self.is_limited() || self.allowance >= self.ration()
    }

    fn charge(&mut self, time: Nanos) {
        self.virtual_time += u128::from(time) * u128::from(WHOLE) / u128::from(self.part.weight.max(1));
        if self.is_limited() {
            self.allowance -= time as i64;
        }
    }

    fn pay(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        self.charge(owed);
    }

    fn pass(&mut self, time: Nanos) {
        if self.is_limited() {
            let more = u128::from(time) * u128::from(self.part.limit) / u128::from(WHOLE);
            self.allowance = self.allowance.saturating_add(more as i64).min(self.ration());
        }
    }

    /// Returns the time until the share may have another turn.
    fn patience(&self) -> Nanos {
        let missing = self.ration().saturating_sub(self.allowance).max(0) as u64;
        let needed = u128::from(missing) * u128::from(WHOLE) / u128::from(self.part.limit.max(1));
        needed as u64 + 1
    }
}

#[derive(Debug)]
struct Worker<S> {
    share: S,
    waits: bool,
    /// The number of the worker's turn that was ended by force, until the work of that turn is complete.
    overdue: Option<u64>,
}

#[derive(Debug)]
struct Turn {
    member: Member,
    number: u64,
    /// The time at which the turn began or was last prolonged.
    since: Nanos,
    yielded: Option<Nanos>,
}

/// The arbiter of one GPU. `S` is the type of a share's name.
#[derive(Debug)]
pub struct Arbiter<S> {
    shares: BTreeMap<S, Share>,
    members: BTreeMap<Member, Worker<S>>,
    turn: Option<Turn>,
    last_number: u64,
    /// The least virtual time of the shares that want the GPU or have it.
    virtual_time: u128,
    now: Nanos,
    words: Vec<(Member, Word)>,
}

impl<S: Ord + Clone> Arbiter<S> {
    /// Creates an arbiter without shares. The numbers of its turns are above `last_number`, so that messages about the
    /// turns of another arbiter are recognised.
    pub fn new(last_number: u64, now: Nanos) -> Self {
        let (shares, members) = (BTreeMap::new(), BTreeMap::new());
        Arbiter { shares, members, turn: None, last_number, virtual_time: 0, now, words: Vec::new() }
    }

    /// Adds a share, or changes its part.
    pub fn set_share(&mut self, name: S, part: Part, now: Nanos) {
        self.advance(now);
        let virtual_time = self.virtual_time;
        let share = self.shares.entry(name).or_insert_with(|| Share {
            part,
            virtual_time,
            allowance: i64::MAX,
            members: 0,
            waiting: VecDeque::new(),
            served: 0,
            used: 0,
            owed: 0,
        });
        share.part = part;
        share.allowance = share.allowance.min(share.ration());
        self.look(now);
    }

    /// Removes a share and its members.
    pub fn forget_share(&mut self, name: &S, now: Nanos) {
        let members: Vec<_> = self.members.iter().filter(|(_, w)| w.share == *name).map(|(m, _)| *m).collect();
        for member in members {
            self.leave(member, now);
        }
        self.shares.remove(name);
    }

    /// Adds a worker to a share. Returns false if the share does not exist.
    pub fn join(&mut self, member: Member, share: S, now: Nanos) -> bool {
        self.advance(now);
        let Some(found) = self.shares.get_mut(&share) else { return false };
        found.members += 1;
        self.members.insert(member, Worker { share, waits: false, overdue: None });
        if self.members.len() == 2 {
            self.tell_sharers(true);
        }
        self.look(now);
        true
    }

    /// Removes a worker and ends its turn.
    pub fn leave(&mut self, member: Member, now: Nanos) {
        self.advance(now);
        let Some(gone) = self.members.remove(&member) else { return };
        if let Some(share) = self.shares.get_mut(&gone.share) {
            share.members -= 1;
            share.pay();
            share.waiting.retain(|m| *m != member);
        }
        self.turn.take_if(|turn| turn.member == member);
        if self.members.len() == 1 {
            self.tell_sharers(false);
        }
        self.look(now);
    }

    /// Records that a worker has something to launch.
    pub fn want(&mut self, member: Member, now: Nanos) {
        self.advance(now);
        self.wait(member);
        self.look(now);
    }

    /// Records that all work of a turn is complete. `more` is set if the worker wants another turn.
    pub fn done(&mut self, member: Member, number: u64, more: bool, now: Nanos) {
        self.advance(now);
        if let Some(worker) = self.members.get_mut(&member) {
            worker.overdue.take_if(|overdue| *overdue == number);
        }
        let is_its = |turn: &Turn| turn.member == member || !stands(Defence::TurnOwner);
        let in_time = self.turn.take_if(|turn| is_its(turn) && turn.number == number).is_some();
        if !in_time
            && let Some(worker) = self.members.get(&member)
            && let Some(share) = self.shares.get_mut(&worker.share)
        {
            share.pay();
        }
        if more {
            self.wait(member);
        }
        self.look(now);
    }

    /// Ends and begins the turns that are due at the time `now`.
    pub fn look(&mut self, now: Nanos) {
        self.advance(now);
        self.end_turn();
        if self.turn.is_none()
            && let Some(share) = self.next()
        {
            self.begin_turn(&share);
        }
        self.raise_virtual_time();
    }

    /// Returns the time until the arbiter has something to do without a message, or `None`.
    pub fn patience(&self) -> Option<Nanos> {
        let waits = || self.shares.values().filter(|share| !share.waiting.is_empty());
        // The shares that have reached their limit. The other shares have their turn, or wait for the end of one.
        let allowed = || waits().filter(|share| !share.is_allowed()).map(Share::patience).min();
        let Some(turn) = &self.turn else { return allowed() };
        if let Some(yielded) = turn.yielded {
            return Some((yielded + OVERTIME).saturating_sub(self.now));
        }
        let holder = self.share_of(turn.member);
        let limit = holder.filter(|share| share.is_limited()).map(|share| {
            let left = share.allowance.max(0) as u128 * u128::from(WHOLE) / u128::from(WHOLE - share.part.limit);
            left as u64 + 1
        });
        let end = waits().any(Share::is_allowed).then(|| (turn.since + TURN).saturating_sub(self.now));
        [limit, end, allowed()].into_iter().flatten().min()
    }

    /// Removes and returns the messages to workers.
    pub fn take_words(&mut self) -> Vec<(Member, Word)> {
        std::mem::take(&mut self.words)
    }

    /// Returns the time that each share has used since the last call.
    pub fn take_used(&mut self, now: Nanos) -> Vec<(S, Nanos)> {
        self.advance(now);
        let used = self.shares.iter_mut().map(|(name, share)| (name.clone(), std::mem::take(&mut share.used)));
        used.filter(|(_, used)| *used > 0).collect()
    }

    fn share_of(&self, member: Member) -> Option<&Share> {
        self.shares.get(&self.members.get(&member)?.share)
    }

    /// Charges the time since the last call to the shares that had the GPU, in equal parts if there were several.
    fn advance(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.now);
        if passed == 0 {
            return;
        }
        self.now = now;
        let holder = self.turn.as_ref().map(|turn| turn.member);
        let mut busy: Vec<S> = self
            .members
            .iter()
            .filter(|(member, worker)| holder == Some(**member) || worker.overdue.is_some())
            .map(|(_, worker)| worker.share.clone())
            .collect();
        busy.sort_unstable();
        busy.dedup();
        for share in self.shares.values_mut() {
            share.pass(passed);
        }
        let each = passed / busy.len().max(1) as u64;
        let holds = holder.and_then(|member| self.members.get(&member)).map(|worker| worker.share.clone());
        for name in busy {
            let Some(share) = self.shares.get_mut(&name) else { continue };
            share.used += each;
            match holds.as_ref() == Some(&name) {
                true => share.charge(each),
                false => share.owed += each,
            }
        }
        self.raise_virtual_time();
    }

    fn raise_virtual_time(&mut self) {
        let holder = self.turn.as_ref().and_then(|turn| self.members.get(&turn.member)).map(|worker| &worker.share);
        let competes = |share: &Share| !share.waiting.is_empty() && share.is_allowed();
        let active = self.shares.iter().filter(|(name, share)| competes(share) || holder == Some(*name));
        if let Some(least) = active.map(|(_, share)| share.virtual_time).min() {
            self.virtual_time = self.virtual_time.max(least);
        }
        // Time that a share could not use because of its own limit is no credit.
        let least = self.virtual_time;
        for share in self.shares.values_mut().filter(|share| !share.is_allowed()) {
            share.virtual_time = share.virtual_time.max(least);
        }
    }

    fn wait(&mut self, member: Member) {
        let holds = self.turn.as_ref().map(|turn| turn.member);
        let Some(worker) = self.members.get_mut(&member) else { return };
        if worker.waits || holds == Some(member) {
            return;
        }
        worker.waits = true;
        let name = worker.share.clone();
        let has_turn = holds.is_some_and(|holder| self.members.get(&holder).is_some_and(|w| w.share == name));
        let Some(share) = self.shares.get_mut(&name) else { return };
        if share.waiting.is_empty() && !has_turn {
            share.virtual_time = share.virtual_time.max(self.virtual_time);
        }
        share.waiting.push_back(member);
    }

    /// Returns the waiting share that gets the next turn, of those whose limit allows it.
    fn next(&self) -> Option<S> {
        let wait = self.shares.iter().filter(|(_, share)| !share.waiting.is_empty() && share.is_allowed());
        wait.min_by_key(|(_, share)| (share.virtual_time, share.served)).map(|(name, _)| name.clone())
    }

    fn begin_turn(&mut self, name: &S) {
        let Some(share) = self.shares.get_mut(name) else { return };
        let Some(member) = share.waiting.pop_front() else { return };
        self.last_number += 1;
        share.served = self.last_number;
        if let Some(worker) = self.members.get_mut(&member) {
            worker.waits = false;
        }
        let number = self.last_number;
        self.turn = Some(Turn { member, number, since: self.now, yielded: None });
        self.words.push((member, Word::Turn { turn: number, sharers: self.members.len() > 1 }));
    }

    /// Requests the end of a turn that has lasted its full time. Ends by force a turn that exceeds its overtime.
    fn end_turn(&mut self) {
        let Some(turn) = &self.turn else { return };
        let Some(worker) = self.members.get(&turn.member) else { return };
        let Some(share) = self.shares.get(&worker.share) else { return };
        if let Some(yielded) = turn.yielded {
            if self.now >= yielded + OVERTIME && stands(Defence::TurnEnds) {
                self.pass_on();
            }
            return;
        }
        let over_limit = share.is_limited() && share.allowance <= 0;
        if !over_limit {
            let Some(next) = self.next() else { return };
            if self.now < turn.since + TURN {
                return;
            }
            // The same share would get the next turn, so the GPU need not be drained.
            let behind = next != worker.share && self.shares[&next].virtual_time > share.virtual_time;
            if behind && share.waiting.is_empty() {
                if let Some(turn) = &mut self.turn {
                    turn.since = self.now;
                }
                return;
            }
        }
        let (member, number) = (turn.member, turn.number);
        if let Some(turn) = &mut self.turn {
            turn.yielded = Some(self.now);
        }
        self.words.push((member, Word::Yield(number)));
    }

    fn pass_on(&mut self) {
        let Some(Turn { member, number, .. }) = self.turn.take() else { return };
        if let Some(worker) = self.members.get_mut(&member) {
            worker.overdue = Some(number);
        }
        self.words.push((member, Word::Over(number)));
    }

    fn tell_sharers(&mut self, present: bool) {
        if let Some(turn) = &self.turn {
            self.words.push((turn.member, Word::Sharers(present)));
        }
    }
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
