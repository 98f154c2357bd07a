//! A warp: its 32 lanes and their groups. The registers belong to the block.

use super::lanes::{ALL, LANES};
use super::local::LocalMemory;

/// The event for which a group waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    #[default]
    Nothing,
    /// The completion of a barrier of the block.
    Barrier(u8),
    /// The arrival of other lanes at a `.sync` operation.
    Lanes,
}

/// A return address, and the frame of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return {
    pub pc: u32,
    pub frame: Frame,
    pub call: u32,
}

/// The first register, predicate and byte of local memory of a function that a group executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frame {
    pub function: u32,
    pub slots: u32,
    pub preds: u32,
    pub local: u32,
}

/// The lanes that have the same pc and call stack.
#[derive(Debug, Clone, Default)]
pub struct Group {
    pub pc: u32,
    pub mask: u32,
    pub frame: Frame,
    pub stack: Vec<Return>,
    pub wait: Wait,
    /// The number of the turn in which the group was last chosen by rotation.
    pub turn: u32,
}

impl Group {
    pub fn joins(&self, other: &Group) -> bool {
        self.pc == other.pc
            && self.wait == Wait::Nothing
            && other.wait == Wait::Nothing
            && self.frame == other.frame
            && self.stack == other.stack
    }
}

#[derive(Default)]
pub struct Warp {
    /// The warp's index in the block.
    pub id: u32,
    /// The mask of the lanes that have not exited.
    pub live: u32,
    /// The running group. Its mask is 0 if there is none.
    pub group: Group,
    pub others: Vec<Group>,
    /// The pc at which the running group must be compared with the other groups again.
    pub stop: u32,
    /// Whether the running group was chosen by rotation. It then runs even if another group has a lower pc.
    rotated: bool,
    turns: u32,
    /// The number of backward branches that are left in this turn.
    pub budget: u32,
    pub local: LocalMemory,
    /// The values that lanes have stored for their `.sync` operation.
    pub handed: Box<[[u64; LANES]; 2]>,
}

impl Warp {
    /// Prepares the warp for a new block, and reuses its memory.
    pub fn reset(&mut self, id: u32, live: u32, entry_pc: u32, function: u32) {
        self.id = id;
        self.live = live;
        self.group =
            Group { pc: entry_pc, mask: live, frame: Frame { function, ..Frame::default() }, ..Group::default() };
        self.others.clear();
        self.stop = u32::MAX;
        self.rotated = false;
        self.turns = 0;
    }

    /// Whether all lanes are live and in one group that can run.
    pub fn is_whole(&self) -> bool {
        self.group.mask == ALL && self.live == ALL && self.others.is_empty() && self.group.wait == Wait::Nothing
    }

    pub fn begin_turn(&mut self, budget: u32) {
        self.budget = budget;
    }

    /// Counts a backward branch. Returns true if the turn is over.
    #[inline(always)]
    pub fn spend(&mut self) -> bool {
        self.budget = self.budget.saturating_sub(1);
        self.budget == 0
    }

    /// Adds a group to `others`, or merges it into a group of `others` with the same pc and call stack, if neither of
    /// the two waits. Ignores an empty group.
    pub fn set_aside(&mut self, group: Group) {
        if group.mask == 0 {
            return;
        }
        match self.others.iter_mut().find(|other| other.joins(&group)) {
            Some(other) => other.mask |= group.mask,
            None => self.others.push(group),
        }
    }

    /// Recomputes the pc at which the running group has to stop.
    pub fn set_stop(&mut self) {
        let depth = self.group.stack.len();
        let waiting = self.others.iter().filter(|g| g.wait == Wait::Nothing && g.stack.len() == depth);
        self.stop = if self.rotated { u32::MAX } else { waiting.map(|g| g.pc).min().unwrap_or(u32::MAX) };
    }

    /// Chooses the group to run: the deepest call first, then the lowest pc. Returns false if no group can run.
    pub fn choose(&mut self) -> bool {
        self.rotated = false;
        self.stash();
        let runnable = self.others.iter().enumerate().filter(|(_, g)| g.wait == Wait::Nothing);
        let best = runnable.max_by_key(|(_, g)| (g.stack.len(), std::cmp::Reverse(g.pc))).map(|(index, _)| index);
        self.take(best)
    }

    /// Ends a turn. In every other turn, the group that has waited longest runs, whatever its pc is. Lanes of one warp
    /// may spin on each other, and the lowest pc alone would never run the lane that holds the lock.
    pub fn rotate(&mut self) {
        let runnable = self.others.iter().any(|g| g.wait == Wait::Nothing);
        if self.rotated || !runnable {
            self.choose();
            return;
        }
        self.turns += 1;
        self.group.turn = self.turns;
        self.stash();
        let runnable = self.others.iter().enumerate().filter(|(_, g)| g.wait == Wait::Nothing);
        let oldest = runnable.min_by_key(|(_, g)| g.turn).map(|(index, _)| index);
        self.rotated = true;
        self.take(oldest);
    }

    fn stash(&mut self) {
        let group = std::mem::take(&mut self.group);
        self.set_aside(group);
    }

    fn take(&mut self, index: Option<usize>) -> bool {
        let Some(index) = index else { return false };
        self.group = self.others.swap_remove(index);
        let mut joined = 0;
        let group = &self.group;
        self.others.retain(|other| {
            let joins = other.joins(group);
            joined |= if joins { other.mask } else { 0 };
            !joins
        });
        self.group.mask |= joined;
        self.set_stop();
        true
    }
}
