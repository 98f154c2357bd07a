//! The program's page-locked and managed memory. It is ordinary memory of this process, recorded with its flags.

use crate::Code;
use crate::devices::memory::synchronous;
use crate::session::{lock, mint};
use driverapi::errors::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKind {
    /// Page-locked memory that the library allocated.
    Allocated,
    /// Memory of the program that the program registered as page-locked.
    Registered,
    /// Memory that the program created and mapped (`cuMemCreate`). Adjacent mappings form one range.
    Created,
    /// Managed memory. Every kernel may use it, even if no parameter contains its address.
    Managed,
    /// Managed memory of a module's variable, at the address that the device's driver chose.
    Variable,
}

impl HostKind {
    pub fn is_managed(self) -> bool {
        matches!(self, HostKind::Managed | HostKind::Variable)
    }
}

impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_managed() { "managed" } else { "page-locked" })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRange {
    pub start: usize,
    pub size: usize,
    pub flags: u32,
    pub kind: HostKind,
    /// The handle of the context in which the memory was pinned.
    pub context: usize,
    pub ordinal: i32,
}

struct Pinned {
    range: HostRange,
    id: u64,
}

static RANGES: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());
/// All ranges lie between these two addresses, so two loads suffice to exclude most other addresses.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The number of ranges that [`managed`] returns.
static MANAGED: AtomicUsize = AtomicUsize::new(0);
/// The number of times that memory was pinned or unpinned.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Records a range as pinned.
///
/// # Errors
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if a part of it is pinned already.
pub fn add(range: HostRange) -> Result<(), Code> {
    let mut ranges = lock(&RANGES);
    let before = ranges.range(..range.start + range.size).next_back();
    if before.is_some_and(|(start, other)| start + other.range.size > range.start) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let range = if range.kind == HostKind::Created { joined(&mut ranges, range) } else { range };
    ranges.insert(range.start, Pinned { range, id: mint() });
    MANAGED.fetch_add((range.kind == HostKind::Managed).into(), SeqCst);
    CHANGES.fetch_add(1, SeqCst);
    LOWEST.fetch_min(range.start, SeqCst);
    HIGHEST.fetch_max(range.start + range.size, SeqCst);
    Ok(())
}

/// Merges a range with adjacent ranges of the same kind, and removes these from `ranges`.
fn joined(ranges: &mut BTreeMap<usize, Pinned>, range: HostRange) -> HostRange {
    let HostRange { mut start, mut size, .. } = range;
    let before = ranges.range(..start).next_back().map(|(_, other)| other.range);
    let after = ranges.get(&(start + size)).map(|other| other.range);
    for other in [before, after].into_iter().flatten() {
        if other.kind == range.kind && (other.start + other.size == start || other.start == start + size) {
            ranges.remove(&other.start);
            start = start.min(other.start);
            size += other.size;
        }
    }
    HostRange { start, size, ..range }
}

/// Removes a part of created memory from its range. The rest of the range stays pinned.
pub fn part(start: usize, size: usize) {
    let mut ranges = lock(&RANGES);
    let found = ranges.range(..=start).next_back().map(|(_, pinned)| pinned.range);
    let Some(range) = found.filter(|range| range.kind == HostKind::Created && start - range.start < range.size) else {
        return;
    };
    ranges.remove(&range.start);
    let end = range.start + range.size;
    for (start, size) in [(range.start, start - range.start), (start + size, end - (start + size))] {
        if size > 0 {
            ranges.insert(start, Pinned { range: HostRange { start, size, ..range }, id: mint() });
        }
    }
    tell_bounds(&ranges);
}

/// Returns whether any memory is or was pinned.
pub fn is_any() -> bool {
    HIGHEST.load(SeqCst) != 0
}

/// Returns a number that changes whenever the results of [`find`] may change.
pub fn changes() -> u64 {
    CHANGES.load(SeqCst)
}

/// Returns whether the address may be pinned. If not, [`find`] is not necessary.
fn may_be_pinned(address: usize) -> bool {
    address >= LOWEST.load(SeqCst) && address < HIGHEST.load(SeqCst)
}

/// Returns the pinned range that contains an address.
pub fn find(address: usize) -> Option<HostRange> {
    find_with_id(address).map(|(range, _)| range)
}

/// Like [`find`], with an id that is unique for all memory of the process.
pub fn find_with_id(address: usize) -> Option<(HostRange, u64)> {
    if !may_be_pinned(address) {
        return None;
    }
    let ranges = lock(&RANGES);
    let (_, Pinned { range, id }) = ranges.range(..=address).next_back()?;
    (address - range.start < range.size).then_some((*range, *id))
}

/// Returns whether all of this memory is pinned. CUDA treats a copy as asynchronous only then.
pub fn is_pinned(start: usize, end: usize) -> bool {
    find(start).is_some_and(|range| end <= range.start + range.size)
}

/// Returns the ranges that are pinned in the context with this handle.
pub fn of_context(context: usize) -> Vec<HostRange> {
    lock(&RANGES).values().map(|pinned| pinned.range).filter(|range| range.context == context).collect()
}

/// Returns all managed memory except variables, which launches need not mirror.
pub fn managed() -> Vec<HostRange> {
    if MANAGED.load(SeqCst) == 0 {
        return Vec::new();
    }
    lock(&RANGES).values().map(|pinned| pinned.range).filter(|range| range.kind == HostKind::Managed).collect()
}

/// Removes a range, and returns it.
///
/// # Errors
/// `missing` if no range of this kind starts here.
pub fn remove(start: usize, kind: HostKind, missing: Code) -> Result<HostRange, Code> {
    let mut ranges = lock(&RANGES);
    match ranges.get(&start) {
        Some(pinned) if pinned.range.kind == kind => {}
        _ => return Err(missing),
    }
    let Pinned { range, .. } = ranges.remove(&start).ok_or(missing)?;
    synchronous::forget(start as u64);
    MANAGED.fetch_sub((kind == HostKind::Managed).into(), SeqCst);
    tell_bounds(&ranges);
    Ok(range)
}

/// Updates the counts and the two bounds after memory was unpinned.
fn tell_bounds(ranges: &BTreeMap<usize, Pinned>) {
    CHANGES.fetch_add(1, SeqCst);
    LOWEST.store(ranges.keys().next().copied().unwrap_or(usize::MAX), SeqCst);
    HIGHEST.store(ranges.values().next_back().map_or(0, |last| last.range.start + last.range.size), SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, size: usize) -> HostRange {
        HostRange { start, size, flags: 0, kind: HostKind::Registered, context: 0, ordinal: 0 }
    }

    #[test]
    fn ranges_do_not_overlap_and_are_found_by_any_address() {
        add(range(0x1000, 0x100)).unwrap();
        add(range(0x1100, 0x100)).unwrap();
        for overlap in [range(0xfff, 2), range(0x10ff, 2), range(0x1000, 1), range(0, 0x10000)] {
            assert_eq!(add(overlap), Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
        }
        assert_eq!(find(0x10ff), Some(range(0x1000, 0x100)));
        assert!(find(0xfff).is_none() && find(0x1200).is_none());
        assert!(is_pinned(0x1010, 0x1100) && !is_pinned(0x1010, 0x1101));
        assert_eq!(remove(0x1000, HostKind::Allocated, 1), Err(1));
        assert_eq!(remove(0x1010, HostKind::Registered, 1), Err(1));
        assert_eq!(remove(0x1000, HostKind::Registered, 1), Ok(range(0x1000, 0x100)));
        assert_eq!(remove(0x1100, HostKind::Registered, 1), Ok(range(0x1100, 0x100)));
    }

    #[test]
    fn created_memory_side_by_side_is_one_range_until_a_part_goes() {
        let created = |start, size| HostRange { kind: HostKind::Created, ..range(start, size) };
        add(created(0x50_0000, 0x100)).unwrap();
        add(created(0x50_0200, 0x100)).unwrap();
        assert!(find(0x50_0100).is_none());
        add(created(0x50_0100, 0x100)).unwrap();
        assert_eq!(find(0x50_02ff), Some(created(0x50_0000, 0x300)));
        assert_eq!(add(created(0x50_0100, 0x10)), Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
        part(0x50_0100, 0x100);
        assert_eq!(find(0x50_0000), Some(created(0x50_0000, 0x100)));
        assert_eq!(find(0x50_0200), Some(created(0x50_0200, 0x100)));
        assert!(find(0x50_0100).is_none());
        part(0x50_0000, 0x100);
        part(0x50_0200, 0x100);
        assert!(find(0x50_0000).is_none() && find(0x50_0200).is_none());
    }
}
