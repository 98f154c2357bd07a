//! The program's page-locked and managed memory: plain memory of this process, remembered with its flags.

use super::synchronous;
use crate::Code;
use crate::session::{lock, mint};
use driverapi::errors::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKind {
    /// Page-locked memory that was allocated here.
    Allocated,
    /// The program's own memory, page-locked.
    Registered,
    /// Every kernel may use it, whether or not a parameter shows its address.
    Managed,
    /// As managed memory, but a variable of a module, which lies where the device's driver put it.
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
    /// Handle of the context in which it was pinned.
    pub context: usize,
    pub ordinal: i32,
}

struct Pinned {
    range: HostRange,
    id: u64,
}

static RANGES: Mutex<BTreeMap<usize, Pinned>> = Mutex::new(BTreeMap::new());
/// All of them lie between these addresses: what does not is told by two loads.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// How many of them [`managed`] tells of.
static MANAGED: AtomicUsize = AtomicUsize::new(0);
/// How often something was pinned or unpinned.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// # Errors
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if part of it is pinned.
pub fn add(range: HostRange) -> Result<(), Code> {
    let mut ranges = lock(&RANGES);
    let before = ranges.range(..range.start + range.size).next_back();
    if before.is_some_and(|(start, other)| start + other.range.size > range.start) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges.insert(range.start, Pinned { range, id: mint() });
    MANAGED.fetch_add((range.kind == HostKind::Managed).into(), SeqCst);
    CHANGES.fetch_add(1, SeqCst);
    LOWEST.fetch_min(range.start, SeqCst);
    HIGHEST.fetch_max(range.start + range.size, SeqCst);
    Ok(())
}

/// Is anything pinned?
pub fn is_any() -> bool {
    HIGHEST.load(SeqCst) != 0
}

/// How often the answers of [`find`] may have changed.
pub fn changes() -> u64 {
    CHANGES.load(SeqCst)
}

/// Is this worth a [`find`]?
fn may_be_pinned(address: usize) -> bool {
    address >= LOWEST.load(SeqCst) && address < HIGHEST.load(SeqCst)
}

/// The pinned range that holds an address.
pub fn find(address: usize) -> Option<HostRange> {
    find_with_id(address).map(|(range, _)| range)
}

/// As [`find`], with a number that no other memory of the process gets.
pub fn find_with_id(address: usize) -> Option<(HostRange, u64)> {
    if !may_be_pinned(address) {
        return None;
    }
    let ranges = lock(&RANGES);
    let (_, Pinned { range, id }) = ranges.range(..=address).next_back()?;
    (address - range.start < range.size).then_some((*range, *id))
}

/// Is all of this memory pinned? CUDA treats a copy as asynchronous only then.
pub fn is_pinned(start: usize, end: usize) -> bool {
    find(start).is_some_and(|range| end <= range.start + range.size)
}

/// What is pinned in the context with this handle.
pub fn of_context(context: usize) -> Vec<HostRange> {
    lock(&RANGES).values().map(|pinned| pinned.range).filter(|range| range.context == context).collect()
}

/// All managed memory but variables, which no launch has to bring to a device.
pub fn managed() -> Vec<HostRange> {
    if MANAGED.load(SeqCst) == 0 {
        return Vec::new();
    }
    lock(&RANGES).values().map(|pinned| pinned.range).filter(|range| range.kind == HostKind::Managed).collect()
}

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
    CHANGES.fetch_add(1, SeqCst);
    LOWEST.store(ranges.keys().next().copied().unwrap_or(usize::MAX), SeqCst);
    HIGHEST.store(ranges.values().next_back().map_or(0, |last| last.range.start + last.range.size), SeqCst);
    Ok(range)
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
}
