//! Distinguishes the process that initialised the driver from its forked children.
//!
//! `pthread_atfork` handlers run for `fork`, but not for `_Fork` or `clone`. A page that the kernel clears in every
//! child detects all of them and costs no system call.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

pub struct Owner {
    /// The owner's process id, or 0.
    process: AtomicI32,
    /// A byte that is 1 in the owner and 0 in its children. Null before [`Owner::take`], and on kernels without such
    /// pages (before Linux 4.14).
    mark: AtomicPtr<AtomicU8>,
}

impl Owner {
    pub const fn nobody() -> Self {
        Owner { process: AtomicI32::new(0), mark: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Makes this process the owner. Call it once.
    pub fn take(&self) {
        // SAFETY: no preconditions.
        self.process.store(unsafe { libc::getpid() }, Ordering::Release);
        self.mark.store(page().cast(), Ordering::Release);
    }

    /// Whether this process is a child of the owner and shares no memory with it. Costs no system call.
    #[inline]
    pub fn is_parent(&self) -> bool {
        // SAFETY: the pointer is null, or points to a page that is never unmapped.
        unsafe { self.mark.load(Ordering::Relaxed).as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
    }

    /// Whether another process is the owner. Correct for every child, but costs a system call.
    pub fn is_other(&self) -> bool {
        let owner = self.process.load(Ordering::Acquire);
        // SAFETY: no preconditions.
        owner != 0 && owner != unsafe { libc::getpid() }
    }
}

/// Maps a page that starts with 1 here and that the kernel clears in children. Returns null if the kernel cannot do
/// this.
fn page() -> *mut u8 {
    const PAGE: usize = 4096;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping is new and written within its length. It is unmapped only before its address is stored.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), PAGE, access, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, PAGE);
            return ptr::null_mut();
        }
        page.cast::<u8>().write(1);
        page.cast()
    }
}
