//! The client's state of each mirror, and the messages that wait until a newer state has been read.

use super::plan::{self, Group, Place, Window};
use crate::driver::{Code, Driver, Result};
use crate::order::completions::Action;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use driverapi::rules::{Rule, kept};
use protocol::{MirrorAdd, MirrorPart, MirrorRun, differences, without};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

pub(super) struct Mirror {
    pub(super) add: MirrorAdd,
    stream_id: u64,
    /// The client's copy of the bytes, without changes that the client has not sent yet.
    base: Vec<u8>,
    /// The ranges that the client changed since the current reading began.
    pub(super) changed: Vec<Range<usize>>,
    /// Whether the driver does not report writes to this mirror.
    is_unnoted: bool,
}

impl Mirror {
    /// Returns the place that covers the whole mirror.
    pub(super) fn place(&self) -> Place {
        let MirrorAdd { mirror, context, address, size } = self.add;
        Place { mirror, context, stream_id: self.stream_id, address, stretch: 0..size as usize }
    }
}

/// A plan for reading mirrors. It is valid until a mirror is added or removed.
struct Plan {
    /// The groups of mirrors for which the driver reports writes.
    groups: Vec<Group>,
    /// The windows that read all other mirrors.
    windows: Vec<Rc<Window>>,
}

/// A message that lets the client conclude that the device may have written to a mirror.
pub struct Told {
    pub seq: u64,
    pub code: Code,
    pub action: Action,
}

pub(super) enum Then {
    /// Send the differences to the client, and then these messages.
    Tell(Vec<Told>),
    /// Store the bytes as the client's state, and then answer the command with this number.
    Answer(u64),
}

pub(super) struct Reading {
    pub(super) windows: VecDeque<Rc<Window>>,
    pub(super) under_way: usize,
    pub(super) then: Then,
}

/// For a context, the last command whose changes were applied, and the last such command that was reported to the
/// client.
#[derive(Default, Clone, Copy)]
pub(super) struct Applied {
    pub(super) last: u64,
    pub(super) told: u64,
}

#[derive(Default)]
pub struct Mirrors {
    /// The mirrors, by the client's numbers.
    pub(super) all: BTreeMap<u64, Mirror>,
    pub(super) applied: BTreeMap<u64, Applied>,
    /// Whether the program's streams may have written to mirrors since the last reading began.
    pub(super) is_dirty: bool,
    /// Whether mirrors are to be read although no message waits for it.
    pub(super) is_wanted: bool,
    pub(super) waiting: Vec<Told>,
    pub(super) added: VecDeque<(u64, u64)>,
    pub(super) reading: Option<Reading>,
    /// The mirrors with unknown writes, which must be read as a whole.
    unknown: BTreeSet<u64>,
    plan: Option<Plan>,
}

impl Mirrors {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the stream carries the client's changes of mirrors. Such a stream belongs to the client's library and
    /// not to the program.
    pub(super) fn is_carrier(&self, stream_id: u64) -> bool {
        self.all.values().any(|mirror| mirror.stream_id == stream_id)
    }

    /// Records that a stream was given work, which may write to mirrors.
    pub fn note_work(&mut self, stream_id: u64) {
        if !self.is_dirty && !self.all.is_empty() && !self.is_carrier(stream_id) {
            self.is_dirty = true;
        }
    }

    /// Whether messages that let the client conclude something must wait until mirrors have been read.
    pub fn holds_back(&self) -> bool {
        let tells = matches!(self.reading, Some(Reading { then: Then::Tell(_), .. }));
        !self.all.is_empty() && (self.is_dirty || tells || !self.waiting.is_empty())
    }

    pub fn wait(&mut self, told: Told) {
        match &mut self.reading {
            Some(Reading { then: Then::Tell(all), .. }) if !kept(Rule::MirrorNext) => all.push(told),
            _ => self.waiting.push(told),
        }
    }

    /// Whether no mirror is being read, and no message waits for that.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_none() && self.added.is_empty() && !self.is_wanted
    }

    /// Whether the client knows everything that the device may have written. If this returns false, a reading follows.
    pub fn settle(&mut self) -> bool {
        self.is_wanted |= self.is_dirty && !self.all.is_empty() && kept(Rule::MirrorSettled);
        self.is_idle()
    }

    /// Returns all mirrors as the commands that create them, with the numbers of their streams.
    pub fn list(&self) -> Vec<(u64, MirrorAdd)> {
        self.all.values().map(|mirror| (mirror.stream_id, mirror.add.clone())).collect()
    }

    /// Adds a mirror.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the number is in use, `CUDA_ERROR_OUT_OF_MEMORY` if all mirrors together would
    /// exceed `most` bytes.
    pub(super) fn add(&mut self, seq: u64, stream_id: u64, add: &MirrorAdd, most: u64) -> Result<()> {
        let bytes: u64 = self.all.values().map(|mirror| mirror.add.size).sum();
        if self.all.contains_key(&add.mirror) || add.size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes.checked_add(add.size).is_none_or(|all| all > most) && kept(Rule::MirrorCharge) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let base = vec![0; add.size as usize];
        let (changed, add) = (Vec::new(), add.clone());
        let mirror = Mirror { add, stream_id, base, changed, is_unnoted: false };
        self.added.push_back((seq, mirror.add.mirror));
        self.all.insert(mirror.add.mirror, mirror);
        (self.is_dirty, self.plan) = (true, None);
        Ok(())
    }

    /// Removes a mirror. Returns the stream that may still be reading it.
    pub(super) fn end(&mut self, mirror: u64) -> Option<u64> {
        if !kept(Rule::MirrorEnded) {
            return None;
        }
        let ended = self.all.remove(&mirror)?;
        self.unknown.remove(&mirror);
        self.plan = None;
        if let Some(reading) = &mut self.reading {
            let places: Vec<Place> = self.all.values().map(Mirror::place).collect();
            reading.windows = reading.windows.drain(..).flat_map(|window| window.without(mirror, &places)).collect();
        }
        Some(ended.stream_id)
    }

    pub fn forget_context(&mut self, context: u64) {
        let of_context: Vec<u64> =
            self.all.iter().filter(|(_, mirror)| mirror.add.context == context).map(|(id, _)| *id).collect();
        for id in of_context {
            self.end(id);
        }
        self.applied.remove(&context);
    }

    /// Records that another worker has applied all changes up to this command.
    pub fn set_applied(&mut self, seq: u64) {
        for mirror in self.all.values().filter(|_| kept(Rule::MirrorMoved)) {
            self.applied.insert(mirror.add.context, Applied { last: seq, told: 0 });
        }
    }

    /// Records a change that the client made. Returns the device address of the changed bytes, or `None` if the mirror
    /// was removed.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the bytes are outside of the mirror, or if the mirror is in another context.
    pub(super) fn change(&mut self, context: u64, mirror: u64, run: &MirrorRun, bytes: &[u8]) -> Result<Option<u64>> {
        let Some(mirror) = self.all.get_mut(&mirror) else { return Ok(None) };
        let (at, reads) = (usize::try_from(run.at).unwrap_or(usize::MAX), self.reading.is_some());
        let range = at..at.saturating_add(bytes.len());
        let place = mirror.base.get_mut(range.clone()).filter(|_| mirror.add.context == context);
        place.ok_or(CUDA_ERROR_INVALID_VALUE)?.copy_from_slice(bytes);
        if reads && kept(Rule::MirrorMeanwhile) {
            mirror.changed.push(range);
        }
        Ok(Some(mirror.add.address + run.at))
    }

    /// Returns a plan for the current mirrors.
    fn plan(&self, is_mapped: impl Fn(u64, u64) -> bool) -> Plan {
        let (unnoted, noted): (Vec<_>, Vec<_>) = self.all.values().partition(|mirror| mirror.is_unnoted);
        let (groups, mut rest) = plan::groups(noted.into_iter().map(Mirror::place).collect(), &is_mapped);
        rest.extend(unnoted.into_iter().map(Mirror::place));
        Plan { groups, windows: plan::windows(rest, between(&is_mapped)) }
    }

    /// Returns the windows of all mirrors that may have been written.
    pub(super) fn windows_to_read(
        &mut self,
        driver: &Driver,
        is_mapped: impl Fn(u64, u64) -> bool,
    ) -> VecDeque<Rc<Window>> {
        let mut plan = self.plan.take().unwrap_or_else(|| self.plan(&is_mapped));
        let (mut places, mut is_lasting) = (Vec::new(), true);
        for group in &mut plan.groups {
            let written = |pages: Range<u64>| driver.written(pages.start, pages.end - pages.start);
            places.extend(group.suspects(written).unwrap_or_else(|| {
                is_lasting = false;
                let ids = group.members.iter().map(|place| place.mirror);
                ids.for_each(|id| self.all.get_mut(&id).into_iter().for_each(|mirror| mirror.is_unnoted = true));
                group.members.clone()
            }));
        }
        if !self.unknown.is_empty() {
            let unknown = std::mem::take(&mut self.unknown);
            places.retain(|place| !unknown.contains(&place.mirror));
            places.extend(unknown.iter().filter_map(|id| self.all.get(id).map(Mirror::place)));
        }
        let mut windows = VecDeque::from(plan.windows.clone());
        windows.extend(plan::windows(places, between(is_mapped)));
        self.plan = Some(plan).filter(|_| is_lasting);
        windows
    }

    /// Records that a window could not be read, so that the writes to its mirrors are unknown.
    pub(super) fn forget_reading(&mut self, window: &Window) {
        self.unknown.extend(window.parts.iter().map(|part| part.mirror));
    }

    /// Stores the bytes of a buffer as the client's state.
    pub(super) fn fill(&mut self, window: &Window, bytes: &[u8]) {
        for part in window.parts.iter().filter(|_| kept(Rule::MirrorBegin)) {
            let read = bytes.get(part.from..part.from + part.len);
            let base = self.all.get_mut(&part.mirror).and_then(|mirror| mirror.base.get_mut(part.range()));
            if let (Some(base), Some(read)) = (base, read) {
                base.copy_from_slice(read);
            }
        }
    }

    /// Returns the differences between a buffer and the client's state, and updates the state, because the client will
    /// receive them. Bytes that the client changed meanwhile are left out until the next reading.
    pub(super) fn differ(&mut self, window: &Window, bytes: &[u8]) -> (Vec<MirrorPart>, Vec<u8>) {
        let (mut parts, mut tail) = (Vec::new(), Vec::new());
        for part in &window.parts {
            let (Some(mirror), Some(read)) =
                (self.all.get_mut(&part.mirror), bytes.get(part.from..part.from + part.len))
            else {
                continue;
            };
            let Mirror { base, changed, .. } = mirror;
            let Some(base) = base.get_mut(part.range()) else { continue };
            let mut runs = differences(base, read);
            if !kept(Rule::MirrorWords) {
                runs = std::iter::once(0..read.len()).collect();
            }
            if runs.is_empty() {
                continue;
            }
            let changed: Vec<Range<usize>> =
                changed.iter().map(|run| run.start.saturating_sub(part.at)..run.end.saturating_sub(part.at)).collect();
            self.is_dirty |= !changed.is_empty();
            let runs = without(runs, &changed);
            for run in &runs {
                if kept(Rule::MirrorOnce) {
                    base[run.clone()].copy_from_slice(&read[run.clone()]);
                }
                tail.extend_from_slice(&read[run.clone()]);
            }
            let run = |run: &Range<usize>| MirrorRun { at: (part.at + run.start) as u64, len: run.len() as u32 };
            parts.push(MirrorPart { mirror: part.mirror, runs: runs.iter().map(run).collect() });
        }
        (parts, tail)
    }
}

/// Returns a function of the address and the length of a gap between two mirrors. The function returns whether one
/// piece of memory contains the gap, the byte before the gap and the byte after it.
pub(super) fn between(is_mapped: impl Fn(u64, u64) -> bool) -> impl Fn(u64, u64) -> bool {
    move |gap, len| is_mapped(gap - 1, len + 2)
}
