//! Host memory that the program creates and maps (`cuMemCreate` with a location on the host). It is an unnamed file.
//! Its pages are mapped when the program or a device gets access to them. From then on it is page-locked memory.

use crate::Code;
use crate::memory::host::{self, HostKind, HostRange};
use crate::memory::{mapped, pinned};
use crate::program::sys;
use crate::session::shared_file;
use driverapi::constants::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use driverapi::errors::*;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A user of mapped memory: the program, or a device by its ordinal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    Host,
    Device(i32),
}

/// The pages of host memory, independent of their mappings.
pub struct Pages {
    file: OwnedFd,
    /// Whether any mapping of the pages was ever accessible.
    was_shown: AtomicBool,
}

impl Pages {
    /// Creates `size` bytes of zeroed pages.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn new(size: u64) -> Result<Pages, Code> {
        let file = shared_file(size).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Pages { file, was_shown: AtomicBool::new(false) })
    }

    /// Gives `user` access to the pages at a mapping, or withdraws it. If one user has access, the pages are accessible
    /// to all users, because the library itself reads and writes them for a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, or the code of failed work.
    pub fn allow(
        &self,
        at: &HostRange,
        offset: u64,
        users: &mut BTreeSet<User>,
        (user, allowed): (User, bool),
    ) -> Result<(), Code> {
        if allowed {
            if users.is_empty() {
                self.show(at, offset)?;
            }
            users.insert(user);
        } else if users.remove(&user) && users.is_empty() {
            hide(at)?;
        }
        Ok(())
    }

    fn show(&self, at: &HostRange, offset: u64) -> Result<(), Code> {
        if self.was_shown.swap(true, SeqCst) {
            mapped::note_alias();
        }
        // SAFETY: the range is mapped here, hence reserved by the program in an arena that this process has reserved,
        // and nothing else is shown there; the file has these bytes for good.
        if !unsafe { sys::back_with(at.start, at.size, self.file.as_fd(), offset) } {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        host::add(*at).inspect_err(|_| {
            // SAFETY: no other code knows the pages.
            unsafe { sys::unback(at.start, at.size) }
        })
    }
}

/// Unmaps pages after all work that uses them. The file keeps their bytes for the next mapping.
///
/// # Errors
/// The code of failed work. The pages are unmapped even then.
pub fn hide(at: &HostRange) -> Result<(), Code> {
    let waited = pinned::wait_for_uses(at.start, at.size);
    // The order matters: a launch of another thread must not find memory that is about to lose its pages.
    host::part(at.start, at.size);
    let ended = mapped::forget_created(at.start, at.size);
    // SAFETY: the pages were mapped there, and all work that used them has ended.
    unsafe { sys::unback(at.start, at.size) };
    waited.and(ended)
}

/// Returns this memory as a host range. It does not belong to a context.
pub fn range(address: u64, size: u64, ordinal: i32) -> HostRange {
    let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    HostRange { start: address as usize, size: size as usize, flags, kind: HostKind::Created, context: 0, ordinal }
}
