//! The scheduler: decides when a command may run, according to its order with other unfinished commands.
//!
//! A command is *open* from its arrival until the driver has it with everything it needs (bytes, an answered callback,
//! a place in the launch queue). The scheduler knows only open commands. If there are none, a command runs at once.
//! Each command names its *keys*, each with a mode from the table in [`Mode`]. The four modes express stream order, the
//! barriers of the legacy stream, event waits and context-wide commands in the same way: for each key, they determine
//! which command waits for which.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// The mode of a command in a key.
///
/// | mode | waits for open | is waited for by |
/// |---|---|---|
/// | `Exclusive` | exclusive and shared | every later command |
/// | `Shared` | exclusive | later exclusive and observing ones |
/// | `Observe` | exclusive and shared | no command |
/// | `After` | exclusive | no command |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
    Observe,
    After,
}

impl Mode {
    fn waits_for_shared(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Observe)
    }
}

#[derive(Debug, Default)]
struct KeyState {
    /// The last open exclusive command. It comes after all earlier commands in the same key.
    exclusive: Option<u64>,
    /// The open shared commands since the exclusive one. There are as many of them as a full launch queue keeps
    /// waiting.
    shared: BTreeSet<u64>,
}

#[derive(Debug)]
struct Open<K> {
    keys: Vec<(K, Mode)>,
    waiting_for: usize,
    waited_for_by: Vec<u64>,
}

/// Orders open commands by their keys.
///
/// ```
/// use remotegpu_worker::order::sched::{Mode, Scheduler};
///
/// let mut scheduler = Scheduler::default();
/// assert!(scheduler.open(1, vec![("stream", Mode::Exclusive)]));
/// assert!(!scheduler.open(2, vec![("stream", Mode::Exclusive)]));
/// assert!(scheduler.open(3, vec![("another stream", Mode::Exclusive)]));
/// scheduler.finish(1);
/// assert_eq!(scheduler.next_ready(), Some(2));
/// ```
#[derive(Debug)]
pub struct Scheduler<K> {
    keys: HashMap<K, KeyState>,
    open: HashMap<u64, Open<K>>,
    ready: BTreeSet<u64>,
    /// The open command that all arriving commands wait for, if there is one.
    barrier: Option<u64>,
}

impl<K: Copy + Eq + Hash> Default for Scheduler<K> {
    fn default() -> Self {
        Scheduler { keys: HashMap::new(), open: HashMap::new(), ready: BTreeSet::new(), barrier: None }
    }
}

impl<K: Copy + Eq + Hash> Scheduler<K> {
    /// Whether no command is open. If so, a command may run when it arrives, and a command that also finishes at once
    /// need not be opened.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether a command with these keys would have to wait.
    pub fn must_wait(&self, keys: &[(K, Mode)]) -> bool {
        self.barrier.is_some() || keys.iter().any(|(key, mode)| !self.before(*key, *mode).is_empty())
    }

    fn before(&self, key: K, mode: Mode) -> Vec<u64> {
        let Some(state) = self.keys.get(&key) else { return Vec::new() };
        let mut before: Vec<u64> = state.exclusive.into_iter().collect();
        if mode.waits_for_shared() {
            before.extend(&state.shared);
        }
        before
    }

    /// Whether another command waits for the open command `seq`.
    pub fn is_waited_for(&self, seq: u64) -> bool {
        self.barrier == Some(seq) || self.open.get(&seq).is_some_and(|open| !open.waited_for_by.is_empty())
    }

    /// Opens the command `seq`. Returns whether it may run now. If not, [`Self::next_ready`] returns it later.
    pub fn open(&mut self, seq: u64, keys: Vec<(K, Mode)>) -> bool {
        let mut before: Vec<u64> = keys.iter().flat_map(|(key, mode)| self.before(*key, *mode)).collect();
        before.extend(self.barrier);
        before.sort_unstable();
        before.dedup();
        for earlier in &before {
            if let Some(open) = self.open.get_mut(earlier) {
                open.waited_for_by.push(seq);
            }
        }
        for (key, mode) in &keys {
            match mode {
                Mode::Exclusive => {
                    *self.keys.entry(*key).or_default() = KeyState { exclusive: Some(seq), shared: BTreeSet::new() };
                }
                Mode::Shared => {
                    self.keys.entry(*key).or_default().shared.insert(seq);
                }
                Mode::Observe | Mode::After => {}
            }
        }
        let waiting_for = before.len();
        self.open.insert(seq, Open { keys, waiting_for, waited_for_by: Vec::new() });
        waiting_for == 0
    }

    /// Makes all commands that arrive from now on wait for the open command `seq`.
    pub fn set_barrier(&mut self, seq: u64) {
        self.barrier = Some(seq);
    }

    /// Finishes the open command `seq`.
    pub fn finish(&mut self, seq: u64) {
        let Some(done) = self.open.remove(&seq) else { return };
        if self.barrier == Some(seq) {
            self.barrier = None;
        }
        for (key, _) in &done.keys {
            let Some(state) = self.keys.get_mut(key) else { continue };
            if state.exclusive == Some(seq) {
                state.exclusive = None;
            }
            state.shared.remove(&seq);
            if state.exclusive.is_none() && state.shared.is_empty() {
                self.keys.remove(key);
            }
        }
        for later in done.waited_for_by {
            if let Some(open) = self.open.get_mut(&later) {
                open.waiting_for -= 1;
                if open.waiting_for == 0 {
                    self.ready.insert(later);
                }
            }
        }
    }

    /// Returns the earliest command that has waited and may run now.
    pub fn next_ready(&mut self) -> Option<u64> {
        self.ready.pop_first()
    }
}

#[cfg(test)]
mod tests;
