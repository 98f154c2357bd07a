//! Descriptors of ours that never have a standard stream's number.
//!
//! A program may close its standard streams, as daemons do, and print later. Its output must not reach the connection
//! of a session, and a file that it opens there must not replace one.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

const STANDARD: usize = 3;

/// The process whose thread is in [`apart`], or 0. A forked child may find its parent here, and takes its place.
static INSIDE: AtomicI32 = AtomicI32::new(0);

/// Runs `make` while the numbers of the standard streams are taken, so that its new descriptors have others.
pub fn apart<T>(make: impl FnOnce() -> T) -> T {
    let _plugs = Plugs::new();
    make()
}

/// Plugs for the free numbers among the first three. They can be neither read nor written.
struct Plugs([Option<libc::c_int>; STANDARD]);

impl Plugs {
    fn new() -> Self {
        // SAFETY: no preconditions.
        let process = unsafe { libc::getpid() };
        let mut other = 0;
        while let Err(now) = INSIDE.compare_exchange(other, process, Ordering::AcqRel, Ordering::Acquire) {
            other = if now == process { 0 } else { now };
            if now == process {
                thread::yield_now();
            }
        }
        let mut plugs = [None; STANDARD];
        for plug in &mut plugs {
            // SAFETY: makes a new descriptor, or none; no program knows its number.
            *plug = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
                fd @ 0..=2 => Some(fd),
                fd => {
                    // SAFETY: closes the descriptor that was made above; of none the kernel says so.
                    unsafe { libc::close(fd) };
                    break;
                }
            };
        }
        Plugs(plugs)
    }
}

impl Drop for Plugs {
    fn drop(&mut self) {
        for fd in self.0.into_iter().flatten() {
            // SAFETY: closes what `new` made.
            unsafe { libc::close(fd) };
        }
        INSIDE.store(0, Ordering::Release);
    }
}
