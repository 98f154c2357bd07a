//! Registered memory of the program, which kernels and copies access. The program may unmap or protect it while they
//! run. A GPU then still uses the old pages. Here, a thread that computes gets new pages in place of the missing ones.
//! A thread of the program that reads such memory crashes, as it would without CUDA.

use crate::engine::computes;
use crate::memory::arena::PAGE;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A registration. It is never removed from the list, because a signal handler reads the list. A free entry is reused.
struct Range {
    base: AtomicU64,
    /// The length in bytes, or 0 if the entry is free.
    len: AtomicU64,
    next: *const Range,
}

static FIRST: AtomicPtr<Range> = AtomicPtr::new(ptr::null_mut());

fn ranges() -> impl Iterator<Item = &'static Range> {
    // SAFETY: entries are never removed from the list, and are only changed by atomics.
    let each = |range: *const Range| unsafe { range.as_ref() };
    std::iter::successors(each(FIRST.load(Ordering::Acquire)), move |range| each(range.next))
}

/// Adds memory that the program has registered. The caller holds the same lock as for [`forget`].
pub fn note(base: u64, len: u64) {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(install);
    let free = ranges().find(|range| range.len.load(Ordering::Relaxed) == 0);
    if let Some(range) = free {
        range.base.store(base, Ordering::Relaxed);
        range.len.store(len, Ordering::Release);
        return;
    }
    let next = FIRST.load(Ordering::Relaxed);
    let range = Box::new(Range { base: AtomicU64::new(base), len: AtomicU64::new(len), next });
    FIRST.store(Box::into_raw(range), Ordering::Release);
}

pub fn forget(base: u64) {
    let noted = |range: &&Range| range.len.load(Ordering::Relaxed) != 0 && range.base.load(Ordering::Relaxed) == base;
    if let Some(range) = ranges().find(noted) {
        range.len.store(0, Ordering::Release);
    }
}

fn is_registered(address: u64) -> bool {
    ranges().any(|range| {
        let (len, base) = (range.len.load(Ordering::Acquire), range.base.load(Ordering::Relaxed));
        len != 0 && (base / PAGE * PAGE..base + len).contains(&address)
    })
}

/// The signal handler that was installed before this one, or null.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

fn install() {
    // SAFETY: both structures are plain data; the kernel reads one and fills the other, which is never freed.
    unsafe {
        let mut before = Box::new(MaybeUninit::<libc::sigaction>::zeroed().assume_init());
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        ours.sa_sigaction = fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut *before);
        BEFORE.store(Box::into_raw(before), Ordering::Release);
        libc::sigaction(libc::SIGSEGV, &raw const ours, ptr::null_mut());
    }
}

/// Handles SIGSEGV. It uses only atomics and system calls, as a signal handler must.
extern "C" fn fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo; for SIGSEGV it has an address.
    let (address, code) = unsafe { ((*info).si_addr() as u64, (*info).si_code) };
    if is_registered(address) && computes() && put_back(address / PAGE * PAGE, code) {
        return;
    }
    // SAFETY: `install` has stored the earlier action before this handler can run. An earlier handler is called as the
    // kernel would call it. Without one, the fault happens again and ends the process.
    unsafe {
        let before = &*BEFORE.load(Ordering::Acquire);
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, before, ptr::null_mut());
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Makes a page readable and writable. A missing page is replaced by a new one, and a protected page gets new
/// permissions.
fn put_back(page: u64, code: libc::c_int) -> bool {
    const NOT_MAPPED: libc::c_int = 1;
    let (at, access) = (ptr::with_exposed_provenance_mut(page as usize), libc::PROT_READ | libc::PROT_WRITE);
    if code != NOT_MAPPED {
        // SAFETY: one page that the program had registered for writing.
        return unsafe { libc::mprotect(at, PAGE as usize, access) } == 0;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces no mapping. If another thread has mapped the page meanwhile, that mapping is used.
    let made = unsafe { libc::mmap(at, PAGE as usize, access, flags, -1, 0) };
    made == at || made == libc::MAP_FAILED && std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
}
