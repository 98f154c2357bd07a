//! Managed memory: memory of this process that every kernel may use at its address. It has a mirror from the beginning,
//! because a kernel may read its address from device memory, and not from a parameter.

use super::host::{self, HostKind, HostRange};
use super::mapped::{self, NoMirror};
use super::pinned;
use crate::Code;
use crate::devices::context::Live;
use crate::session::lock;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use driverapi::managed::Advised;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The program's advice (`cuMemAdvise`), by the start of the memory.
static ADVISED: Mutex<BTreeMap<usize, Advised>> = Mutex::new(BTreeMap::new());

/// Allocates zeroed managed memory and returns its address.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` beyond the budget or the share, or the session's sticky error.
pub fn allocate(live: &Arc<Live>, size: usize, flags: u32) -> Result<usize, Code> {
    let start = pinned::allocate(live, size, HostKind::Managed);
    if start == 0 {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let (context, ordinal) = (live.handle, live.device.ordinal);
    let range = HostRange { start, size, flags, kind: HostKind::Managed, context, ordinal };
    // Removes advice of earlier memory here, which a destroyed context left.
    lock(&ADVISED).remove(&start);
    pinned::add(live, range)?;
    mapped::reach(live, &range).map(|()| start).map_err(|why| {
        let _ = free(start);
        match why {
            NoMirror::Failed(code) => code,
            NoMirror::Elsewhere => CUDA_ERROR_OUT_OF_MEMORY,
            NoMirror::Budget { most } => {
                pinned::say_beyond(&range, most, "the program asks for", CUDA_ERROR_OUT_OF_MEMORY);
                CUDA_ERROR_OUT_OF_MEMORY
            }
        }
    })
}

/// Frees managed memory after all work that may use it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if no managed memory starts here, or the code of failed work.
pub fn free(start: usize) -> Result<(), Code> {
    // The advice is removed first, because another thread may get these addresses at once.
    lock(&ADVISED).remove(&start);
    pinned::remove(start, HostKind::Managed, CUDA_ERROR_INVALID_VALUE)
}

/// Calls `body` with the advice for `count` bytes of managed memory.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if these bytes are not inside one allocation of managed memory, or the error of `body`.
pub fn advised<T>(
    address: u64,
    count: usize,
    body: impl FnOnce(&mut Advised, Range<u64>) -> Result<T, Code>,
) -> Result<T, Code> {
    let found = host::find(address as usize).filter(|range| range.kind == HostKind::Managed);
    let HostRange { start, size, .. } = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut all = lock(&ADVISED);
    let known = all.entry(start).or_insert_with(|| Advised::new(start as u64..(start + size) as u64));
    let range = known.range(address, count)?;
    body(known, range)
}
