//! Which process this is: the one that has initialised the driver, or a child of it.
//!
//! `pthread_atfork` tells of children that `fork` makes, and not of those that `_Fork` or `clone` makes. A page that the
//! kernel empties in every child tells of all, and costs no system call.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, Ordering};

pub struct Owner {
    /// Its number, or 0.
    process: AtomicI32,
    /// A byte that is 1 in the owner and 0 in its children; null before [`Owner::take`], and on a kernel that has no such
    /// pages (before Linux 4.14).
    mark: AtomicPtr<AtomicU8>,
}

impl Owner {
    pub const fn nobody() -> Self {
        Owner { process: AtomicI32::new(0), mark: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process is the owner. To be called once.
    pub fn take(&self) {
        // SAFETY: no preconditions.
        self.process.store(unsafe { libc::getpid() }, Ordering::Release);
        self.mark.store(page().cast(), Ordering::Release);
    }

    /// Whether this is a child of the owner that shares no memory with it.
    #[inline]
    pub fn is_parent(&self) -> bool {
        // SAFETY: null, or a page that stays.
        unsafe { self.mark.load(Ordering::Relaxed).as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
    }

    /// Whether another process is the owner. Right for every child, at the cost of a system call.
    pub fn is_other(&self) -> bool {
        let owner = self.process.load(Ordering::Acquire);
        // SAFETY: no preconditions.
        owner != 0 && owner != unsafe { libc::getpid() }
    }
}

/// A page that is empty in children, and starts with a 1 here.
fn page() -> *mut u8 {
    const PAGE: usize = 4096;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping is new; it is written within its length, and unmapped only where nothing has its address.
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
