//! Page-locked memory of the program: its allocation, and its mirrors for kernels.
//!
//! Memory that the library allocates has addresses of the arena, so its mirror on the device has the same address. The
//! mirror is created when the program requests it (`CU_MEMHOSTALLOC_DEVICEMAP`, `cuMemHostGetDevicePointer`), or when a
//! parameter of a launch points into the memory. Until then the memory takes no space on the device and is not
//! compared.

use super::host::{self, HostKind, HostRange};
use super::mapped::{self, NoMirror};
use super::{budget, variables};
use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::target::Target;
use crate::program::{log, sys};
use crate::session::{self, HostBox};
use driverapi::errors::*;
use driverapi::report;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Allocates zeroed page-locked memory, and returns its address or 0. If the arena has no room, the memory lies
/// outside, where no kernel can use it. Memory that is not managed is shared with children made by fork, and with a
/// worker on this machine.
pub fn allocate(live: &Live, size: usize, kind: HostKind) -> usize {
    let arena = live.session.arena();
    let pages = (size as u64).checked_next_multiple_of(PAGE);
    let place = pages.and_then(|pages| Some((arena.take_pinned(pages, PAGE)?, pages)));
    let shared = kind == HostKind::Allocated;
    let Some((address, pages)) = place else {
        let pages = if shared { sys::allocate_pages_for_children(size) } else { sys::allocate_pages(size) };
        return pages.expose_provenance();
    };
    let (start, len) = (address as usize, pages as usize);
    // SAFETY: the arena is reserved address space of this process, and this part of it was just taken for this purpose.
    let is_backed = unsafe {
        match shared {
            true => live.session.back_shared(live.id, start, len) || sys::back_for_children(start, len),
            false => sys::back(start, len),
        }
    };
    if is_backed {
        return address as usize;
    }
    arena.put_back_pinned(address, pages);
    0
}

/// Frees the pages and the addresses of a range.
fn release(range: &HostRange) {
    let owner = session::owner_of(range.start as u64).filter(|owner| owner.arena().is_pinned(range.start as u64));
    let pages = (range.size as u64).next_multiple_of(PAGE);
    // SAFETY: the memory came from `allocate`, and the program has freed it.
    unsafe {
        match owner {
            None => sys::free_pages(std::ptr::with_exposed_provenance_mut(range.start), range.size),
            Some(owner) => {
                owner.end_shared(range.start);
                sys::unback(range.start, pages as usize);
                owner.arena().put_back_pinned(range.start as u64, pages);
            }
        }
    }
}

/// Records memory as pinned until it is removed or its context is destroyed.
///
/// # Errors
/// Those of [`host::add`].
pub fn add(live: &Live, range: HostRange) -> Result<(), Code> {
    host::add(range)?;
    live.at_end(end_in);
    Ok(())
}

/// Frees memory that the program allocated, or unregisters memory that it registered, after all work that uses it.
///
/// # Errors
/// `missing` if no range of this kind starts here, or the code of failed work.
pub fn remove(start: usize, kind: HostKind, missing: Code) -> Result<(), Code> {
    let range = host::find(start).filter(|range| range.start == start && range.kind == kind).ok_or(missing)?;
    wait_for_uses(range.start, range.size)?;
    // The order matters: a launch of another thread must not find memory that is about to lose its pages.
    let range = host::remove(start, kind, missing)?;
    let ended = mapped::forget(start);
    match kind {
        HostKind::Registered | HostKind::Created => {}
        HostKind::Allocated | HostKind::Managed => release(&range),
        HostKind::Variable => variables::release(&range),
    }
    ended
}

/// Waits for copies and fills that still use memory which is about to be freed, as CUDA does.
///
/// # Errors
/// The code of failed work.
pub fn wait_for_uses(start: usize, size: usize) -> Result<(), Code> {
    let memory = HostBox::linear(start, size as u64);
    let uses =
        |live: &&Arc<Live>| live.session.is_in_use(&memory) || live.session.has_callbacks() || live.session.has_waits();
    context::all_live().iter().filter(uses).try_for_each(|live| live.synchronise())
}

/// Removes the memory that was pinned in a context which is about to be destroyed.
fn end_in(live: &Arc<Live>) {
    mapped::end_in(live);
    for range in host::of_context(live.handle) {
        // No caller could get the code of failed work.
        let _ = remove(range.start, range.kind, CUDA_ERROR_INVALID_VALUE);
    }
}

/// Returns the address at which the device of `live` has memory of the program. Creates the mirror if necessary.
///
/// # Errors
/// The reason why it has none.
pub fn device_pointer(live: &Arc<Live>, range: &HostRange, address: u64) -> Result<u64, NoMirror> {
    match range.kind {
        HostKind::Registered => mapped::register(live, range)?,
        _ => mapped::reach(live, range)?,
    }
    mapped::device_address(&live.session, address, 1).ok_or(NoMirror::Elsewhere)
}

/// Returns the device's address of memory of the program. If there is no mirror, returns the address that a mirror
/// would have.
pub fn known_device_pointer(live: &Live, address: u64) -> Option<u64> {
    mapped::device_address(&live.session, address, 1).or(live.session.arena().is_pinned(address).then_some(address))
}

/// Creates mirrors of the memory that the parameters of a launch point to, and of all managed memory.
///
/// # Errors
/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` beyond the budget for mirrors, `CUDA_ERROR_OUT_OF_MEMORY` if the share has no
/// room, or the session's sticky error.
pub fn before_launch(target: &Target, parameters: impl FnOnce() -> Vec<u8>) -> Result<(), Code> {
    if !host::is_any() {
        return Ok(());
    }
    let arena = target.live.session.arena();
    let mut used: Vec<HostRange> = host::managed();
    used.retain(|range| arena.is_pinned(range.start as u64));
    if !budget::of(HostKind::Allocated).is_off() {
        let parameters = parameters();
        used.extend(words(&parameters).filter_map(host::find));
        mapped::show_registered(&target.live, words(&parameters))?;
    }
    if used.is_empty() {
        return Ok(());
    }
    used.iter().try_for_each(|range| mapped::reach(&target.live, range).or_else(|why| explain(range, why)))?;
    mapped::hold(&target.live.session, target.stream_id)
}

/// Returns whether packed parameters contain an address of the program's page-locked memory.
pub fn names_host_memory(parameters: &[u8]) -> bool {
    words(parameters).any(|word| host::find(word).is_some())
}

/// Logs that memory has no mirror because of the budget, and the code that the program gets. `what` is the beginning of
/// the message, before the memory.
pub fn say_beyond(range: &HostRange, most: usize, what: &str, code: Code) {
    let (HostRange { start, size, kind, .. }, budget) = (*range, budget::of(range.kind));
    log::error_unless_repeated(&format!(
        "{what} {size} bytes of {kind} memory at {start:#x}: with what is mirrored already that is more than {}, so the \
         call fails with code {code}; set {} to allow more, or copy the memory to the device",
        budget.limit(most),
        budget.setting
    ));
    report::beyond(budget.setting, code);
}

/// Logs why a kernel will not find memory whose address it gets. Returns `Ok` if the launch may still run, because the
/// kernel may never use that memory.
fn explain(range: &HostRange, why: NoMirror) -> Result<(), Code> {
    let HostRange { start, size, kind, .. } = *range;
    let what = format!("a kernel is given an address in {size} bytes of {kind} memory at {start:#x}");
    let (code, line) = match why {
        NoMirror::Budget { most } => {
            say_beyond(range, most, "a kernel is given an address in", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
            return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        NoMirror::Failed(CUDA_ERROR_OUT_OF_MEMORY) => {
            let line = format!("{what}: the share has no room for its mirror; ask for more, or free device memory");
            (CUDA_ERROR_OUT_OF_MEMORY, line)
        }
        NoMirror::Failed(code) => return Err(code),
        NoMirror::Elsewhere if kind == HostKind::Registered => {
            let advice = "pass what cuMemHostGetDevicePointer answers, or use memory of cuMemHostAlloc";
            (0, format!("{what} that is registered: a share's kernels do not find it there; {advice}"))
        }
        NoMirror::Elsewhere => {
            let advice = "allocate it with that GPU's context current, or copy it";
            (0, format!("{what} that belongs to another GPU or appliance: this kernel does not find it; {advice}"))
        }
    };
    log::error_unless_repeated(&line);
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Returns the words of packed parameters that may be addresses.
fn words(parameters: &[u8]) -> impl Iterator<Item = usize> {
    let (words, _) = parameters.as_chunks::<{ size_of::<u64>() }>();
    words.iter().map(|word| u64::from_le_bytes(*word) as usize)
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_are_aligned_and_whole() {
        let mut bytes = [0u8; 20];
        bytes[8..16].copy_from_slice(&0x1234_5678_9abc_def0u64.to_le_bytes());
        assert_eq!(words(&bytes).collect::<Vec<_>>(), [0, 0x1234_5678_9abc_def0]);
        assert_eq!(words(&bytes[..7]).count(), 0);
    }
}
