//! The last accesses to each byte. Each line of 64 bytes has a cell, which is allocated at the first access.

use crate::engine::watch::Access;
use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub const LINE: u64 = 64;
const PAGE: u64 = 4096;
const SHARDS: usize = 64;
const SLOTS: usize = 5;
/// The bit position of an operation's number. The kind of access is in the bits below.
const ID_SHIFT: u32 = 2;

/// The accesses to a line: up to five pairs of operation and kind, each with a mask of bytes. If all five are in use,
/// the least informative one is dropped. That can hide a race, but it never reports a false one.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    masks: [u64; SLOTS],
    owners: [u32; SLOTS],
}

const _: () = assert!(size_of::<Cell>() as u64 <= LINE);

/// An earlier access that is not ordered with the present one.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    pub id: u32,
    pub access: Access,
    pub bytes: u64,
}

fn pack(id: u32, access: Access) -> u32 {
    id << ID_SHIFT | access as u32
}

impl Cell {
    fn slots(&self) -> impl Iterator<Item = (usize, u32, Access, u64)> + '_ {
        let full = (0..SLOTS).filter(|&slot| self.masks[slot] != 0);
        full.map(|slot| {
            let owner = self.owners[slot];
            (slot, owner >> ID_SHIFT, Access::from_bits(owner), self.masks[slot])
        })
    }

    /// Returns the operations whose writes to these bytes are recorded.
    pub fn writers(&self, mask: u64) -> Vec<u32> {
        self.slots()
            .filter(|(_, _, access, bytes)| access.writes() && bytes & mask != 0)
            .map(|(_, id, ..)| id)
            .collect()
    }

    /// Returns the recorded accesses that conflict with an access and are not ordered with it. `before` says whether an
    /// operation comes before the present one.
    pub fn conflicts(&self, mask: u64, access: Access, id: u32, before: impl Fn(u32) -> bool) -> Vec<Conflict> {
        let unordered = self.slots().filter(|&(_, other, kind, bytes)| {
            bytes & mask != 0 && other != id && kind.conflicts(access) && !before(other)
        });
        unordered.map(|(_, id, access, bytes)| Conflict { id, access, bytes: bytes & mask }).collect()
    }

    /// Whether the operation has already accessed all of these bytes in this way, so that the cell would not change.
    pub fn knows(&self, mask: u64, access: Access, id: u32) -> bool {
        let owner = pack(id, access);
        (0..SLOTS).any(|slot| self.owners[slot] == owner && mask & !self.masks[slot] == 0)
    }

    pub fn touch(&mut self, mask: u64, access: Access, id: u32, before: impl Fn(u32) -> bool) {
        for slot in 0..SLOTS {
            let (other, kind) = (self.owners[slot] >> ID_SHIFT, Access::from_bits(self.owners[slot]));
            // A later access that is ordered after a write is also ordered after everything before that write. A read
            // replaces earlier reads only.
            let hidden = access == Access::Write || !kind.writes() && !access.writes();
            if self.masks[slot] & mask != 0 && hidden && (other == id && kind == access || other != id && before(other))
            {
                self.masks[slot] &= !mask;
            }
        }
        let owner = pack(id, access);
        let own = (0..SLOTS).find(|&slot| self.masks[slot] != 0 && self.owners[slot] == owner);
        let slot =
            own.or_else(|| (0..SLOTS).find(|&slot| self.masks[slot] == 0)).unwrap_or_else(|| self.victim(before));
        if self.owners[slot] != owner {
            self.masks[slot] = 0;
        }
        (self.owners[slot], self.masks[slot]) = (owner, self.masks[slot] | mask);
    }

    /// Returns the slot to drop. Operations that are ordered before the present one come first, then reads.
    fn victim(&self, before: impl Fn(u32) -> bool) -> usize {
        let cost = |&slot: &usize| {
            let owner = self.owners[slot];
            (!before(owner >> ID_SHIFT), Access::from_bits(owner).writes(), self.masks[slot].count_ones())
        };
        (0..SLOTS).min_by_key(cost).unwrap_or(0)
    }

    fn clear(&mut self, mask: u64) {
        self.masks.iter_mut().for_each(|bytes| *bytes &= !mask);
    }
}

type Page = Mutex<[Cell; (PAGE / LINE) as usize]>;

pub struct Shadow {
    shards: [RwLock<HashMap<u64, Arc<Page>>>; SHARDS],
}

impl Default for Shadow {
    fn default() -> Self {
        Shadow { shards: std::array::from_fn(|_| RwLock::default()) }
    }
}

/// Returns the mask of the bytes of `[start, end)` in a line.
fn mask(line: u64, start: u64, end: u64) -> u64 {
    let (from, to) = (start.max(line) - line, end.min(line + LINE) - line);
    let upto = |n: u64| if n >= LINE { u64::MAX } else { (1 << n) - 1 };
    upto(to) & !upto(from)
}

impl Shadow {
    fn page(&self, number: u64) -> Option<Arc<Page>> {
        let shard = self.shards[number as usize % SHARDS].read().unwrap_or_else(PoisonError::into_inner);
        shard.get(&number).map(Arc::clone)
    }

    fn made(&self, number: u64) -> Arc<Page> {
        self.page(number).unwrap_or_else(|| {
            let mut shard = self.shards[number as usize % SHARDS].write().unwrap_or_else(PoisonError::into_inner);
            let page = shard.entry(number).or_insert_with(|| Arc::new(Mutex::new([Cell::default(); 64])));
            Arc::clone(page)
        })
    }

    /// Calls `each` for every line of a range, with the line's address, its cell and the mask of bytes in the range.
    pub fn visit(&self, start: u64, len: u64, mut each: impl FnMut(u64, &mut Cell, u64)) {
        self.walk(start, len, &|number| Some(self.made(number)), &mut each);
    }

    /// Calls `each` as [`Self::visit`] does, but only for lines that have a cell.
    pub fn existing(&self, start: u64, len: u64, mut each: impl FnMut(u64, &mut Cell, u64)) {
        self.walk(start, len, &|number| self.page(number), &mut each);
    }

    fn walk(
        &self,
        start: u64,
        len: u64,
        page: &dyn Fn(u64) -> Option<Arc<Page>>,
        each: &mut dyn FnMut(u64, &mut Cell, u64),
    ) {
        let end = start.saturating_add(len);
        let mut at = start;
        while at < end {
            let next = (at / PAGE + 1) * PAGE;
            if let Some(page) = page(at / PAGE) {
                let mut cells = page.lock().unwrap_or_else(PoisonError::into_inner);
                let mut line = at / LINE * LINE;
                while line < end.min(next) {
                    each(line, &mut cells[(line % PAGE / LINE) as usize], mask(line, at, end));
                    line += LINE;
                }
            }
            at = next;
        }
    }

    pub fn clear(&self, start: u64, len: u64) {
        self.existing(start, len, |_, cell, mask| cell.clear(mask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, StrongRead, StrongWrite, Write};

    fn never(_: u32) -> bool {
        false
    }

    fn found(cell: &Cell, mask: u64, access: Access) -> Vec<u32> {
        cell.conflicts(mask, access, 9, never).into_iter().map(|conflict| conflict.id).collect()
    }

    #[test]
    fn only_bytes_that_both_touch_and_one_writes_conflict() {
        let mut cell = Cell::default();
        cell.touch(0x0f, Write, 1, never);
        cell.touch(0xf0, Read, 2, never);
        assert_eq!(found(&cell, 0xff, Read), [1]);
        assert_eq!(found(&cell, 0xff, Write), [1, 2]);
        assert_eq!(found(&cell, 0xf00, Write), [0; 0]);
    }

    #[test]
    fn strong_accesses_conflict_with_weak_ones_only() {
        let mut cell = Cell::default();
        cell.touch(0x0f, StrongWrite, 1, never);
        cell.touch(0xf0, StrongRead, 2, never);
        assert_eq!(found(&cell, 0xff, StrongWrite), [0; 0]);
        assert_eq!(found(&cell, 0xff, Write), [1, 2]);
        assert_eq!(found(&cell, 0xff, Read), [1]);
    }

    #[test]
    fn a_write_hides_what_is_before_it_and_keeps_the_rest() {
        let mut cell = Cell::default();
        cell.touch(0x0f, Write, 1, never);
        cell.touch(0xf0, Write, 2, never);
        cell.touch(0xff, Write, 3, |other| other == 1);
        assert_eq!(found(&cell, 0xff, Read), [3, 2]);
    }

    #[test]
    fn five_unordered_accesses_are_kept_and_an_ordered_one_makes_room() {
        let mut cell = Cell::default();
        (1..=5).for_each(|id| cell.touch(1 << id, Read, id, never));
        cell.touch(1 << 6, Read, 6, |other| other == 3);
        assert_eq!(found(&cell, u64::MAX, Write), [1, 2, 6, 4, 5]);
    }

    #[test]
    fn a_range_ends_at_its_last_byte() {
        let shadow = Shadow::default();
        let mut seen = Vec::new();
        shadow.visit(PAGE - 4, 70, |line, _, mask| seen.push((line, mask)));
        assert_eq!(seen, [(PAGE - 64, 0xf << 60), (PAGE, u64::MAX), (PAGE + 64, 3)]);
    }
}
