//! Mirrors: device memory of which the client has a copy. What it has is kept here, so that it is told only what the device
//! has changed since. `reading` reads them on the GPU; nothing here does.

pub mod plan;
mod reading;

use crate::driver::{Code, Driver, Result};
use crate::order::completions::Action;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use plan::{Group, Place, Window};
use protocol::{MirrorAdd, MirrorPart, MirrorRun, differences, without};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

struct Mirror {
    add: MirrorAdd,
    stream_id: u64,
    /// What the client has, but for what it changed and has not sent.
    base: Vec<u8>,
    /// What it changed since it was begun to read the mirrors.
    changed: Vec<Range<usize>>,
    /// The driver does not say what is written of it.
    is_unnoted: bool,
}

impl Mirror {
    /// All of it, as what is to be read.
    fn place(&self) -> Place {
        let MirrorAdd { mirror, context, address, size } = self.add;
        Place { mirror, context, stream_id: self.stream_id, address, stretch: 0..size as usize }
    }
}

/// How mirrors are read, until one comes or goes.
struct Plan {
    /// Those of which the driver says what was written.
    groups: Vec<Group>,
    /// All others.
    windows: Vec<Rc<Window>>,
}

/// Something from which the client may conclude that the device has written to a mirror.
pub struct Told {
    pub seq: u64,
    pub code: Code,
    pub action: Action,
}

enum Then {
    /// The client is told of these, and of differences before.
    Tell(Vec<Told>),
    /// This is what the client has; its command is answered.
    Answer(u64),
}

struct Reading {
    windows: VecDeque<Rc<Window>>,
    under_way: usize,
    then: Then,
}

/// Commands with changes that were carried out in a context, up to this one; and what the client knows of that.
#[derive(Default, Clone, Copy)]
struct Applied {
    last: u64,
    told: u64,
}

#[derive(Default)]
pub struct Mirrors {
    /// By the client's numbers.
    all: BTreeMap<u64, Mirror>,
    applied: BTreeMap<u64, Applied>,
    /// The program's streams may have written since it was last begun to read.
    is_dirty: bool,
    /// They are to be read although nothing waits for that.
    is_wanted: bool,
    waiting: Vec<Told>,
    added: VecDeque<(u64, u64)>,
    reading: Option<Reading>,
    /// What may have been written of these is not known.
    unknown: BTreeSet<u64>,
    plan: Option<Plan>,
}

impl Mirrors {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Is the stream one that brings changes, of the client's library and not of the program?
    fn is_carrier(&self, stream_id: u64) -> bool {
        self.all.values().any(|mirror| mirror.stream_id == stream_id)
    }

    /// A stream was given something.
    pub fn note_work(&mut self, stream_id: u64) {
        if !self.is_dirty && !self.all.is_empty() && !self.is_carrier(stream_id) {
            self.is_dirty = true;
        }
    }

    /// Must what lets the client conclude something wait until mirrors have been read?
    pub fn holds_back(&self) -> bool {
        let tells = matches!(self.reading, Some(Reading { then: Then::Tell(_), .. }));
        !self.all.is_empty() && (self.is_dirty || tells || !self.waiting.is_empty())
    }

    pub fn wait(&mut self, told: Told) {
        self.waiting.push(told);
    }

    /// Is nothing being read, and does nothing wait for it?
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_none() && self.added.is_empty() && !self.is_wanted
    }

    /// Has the client been told of all that the device can have written? If not, it will be.
    pub fn settle(&mut self) -> bool {
        self.is_wanted |= self.is_dirty && !self.all.is_empty();
        self.is_idle()
    }

    /// All mirrors, as the commands that make them, with their streams.
    pub fn list(&self) -> Vec<(u64, MirrorAdd)> {
        self.all.values().map(|mirror| (mirror.stream_id, mirror.add.clone())).collect()
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a number that is taken, `CUDA_ERROR_OUT_OF_MEMORY` beyond `most` bytes.
    fn add(&mut self, seq: u64, stream_id: u64, add: &MirrorAdd, most: u64) -> Result<()> {
        let bytes: u64 = self.all.values().map(|mirror| mirror.add.size).sum();
        if self.all.contains_key(&add.mirror) || add.size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes.checked_add(add.size).is_none_or(|all| all > most) {
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

    /// Ends a mirror; the stream that may be reading it.
    fn end(&mut self, mirror: u64) -> Option<u64> {
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

    /// All changes up to this command have been carried out, elsewhere.
    pub fn set_applied(&mut self, seq: u64) {
        for mirror in self.all.values() {
            self.applied.insert(mirror.add.context, Applied { last: seq, told: 0 });
        }
    }

    /// The client changed this; where it is. `None` of a mirror that has ended.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for what is not in the mirror, or not of this context.
    fn change(&mut self, context: u64, mirror: u64, run: &MirrorRun, bytes: &[u8]) -> Result<Option<u64>> {
        let Some(mirror) = self.all.get_mut(&mirror) else { return Ok(None) };
        let (at, reads) = (usize::try_from(run.at).unwrap_or(usize::MAX), self.reading.is_some());
        let range = at..at.saturating_add(bytes.len());
        let place = mirror.base.get_mut(range.clone()).filter(|_| mirror.add.context == context);
        place.ok_or(CUDA_ERROR_INVALID_VALUE)?.copy_from_slice(bytes);
        if reads {
            mirror.changed.push(range);
        }
        Ok(Some(mirror.add.address + run.at))
    }

    /// How mirrors are read now.
    fn plan(&self, is_mapped: impl Fn(u64, u64) -> bool) -> Plan {
        let (unnoted, noted): (Vec<_>, Vec<_>) = self.all.values().partition(|mirror| mirror.is_unnoted);
        let (groups, mut rest) = plan::groups(noted.into_iter().map(Mirror::place).collect(), &is_mapped);
        rest.extend(unnoted.into_iter().map(Mirror::place));
        Plan { groups, windows: plan::windows(rest, between(&is_mapped)) }
    }

    /// What is to be read of all mirrors.
    fn windows_to_read(&mut self, driver: &Driver, is_mapped: impl Fn(u64, u64) -> bool) -> VecDeque<Rc<Window>> {
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

    /// Of what was given back unread nothing is known.
    fn forget_reading(&mut self, window: &Window) {
        self.unknown.extend(window.parts.iter().map(|part| part.mirror));
    }

    /// What a buffer holds is what the client has.
    fn fill(&mut self, window: &Window, bytes: &[u8]) {
        for part in &window.parts {
            let read = bytes.get(part.from..part.from + part.len);
            let base = self.all.get_mut(&part.mirror).and_then(|mirror| mirror.base.get_mut(part.range()));
            if let (Some(base), Some(read)) = (base, read) {
                base.copy_from_slice(read);
            }
        }
    }

    /// How what a buffer holds differs from what the client has, which it is going to be told. What it changed meanwhile
    /// stays as it is until the next time.
    fn differ(&mut self, window: &Window, bytes: &[u8]) -> (Vec<MirrorPart>, Vec<u8>) {
        let (mut parts, mut tail) = (Vec::new(), Vec::new());
        for part in &window.parts {
            let (Some(mirror), Some(read)) =
                (self.all.get_mut(&part.mirror), bytes.get(part.from..part.from + part.len))
            else {
                continue;
            };
            let Mirror { base, changed, .. } = mirror;
            let Some(base) = base.get_mut(part.range()) else { continue };
            let runs = differences(base, read);
            if runs.is_empty() {
                continue;
            }
            let changed: Vec<Range<usize>> =
                changed.iter().map(|run| run.start.saturating_sub(part.at)..run.end.saturating_sub(part.at)).collect();
            self.is_dirty |= !changed.is_empty();
            let runs = without(runs, &changed);
            for run in &runs {
                base[run.clone()].copy_from_slice(&read[run.clone()]);
                tail.extend_from_slice(&read[run.clone()]);
            }
            let run = |run: &Range<usize>| MirrorRun { at: (part.at + run.start) as u64, len: run.len() as u32 };
            parts.push(MirrorPart { mirror: part.mirror, runs: runs.iter().map(run).collect() });
        }
        (parts, tail)
    }
}

/// Is memory of one piece between two mirrors, and the byte before and the one behind it?
fn between(is_mapped: impl Fn(u64, u64) -> bool) -> impl Fn(u64, u64) -> bool {
    move |gap, len| is_mapped(gap - 1, len + 2)
}
