//! Creates file descriptors that never have the number of a standard stream.
//!
//! A program, for example a daemon, may close its standard streams and print later. Its output must not go to the
//! connection of a session, and a file that it opens must not replace that connection.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

const STANDARD: usize = 3;

/// The process whose thread runs in [`apart`], or 0. After a fork the child may find its parent's number, and replaces
/// it.
static INSIDE: AtomicI32 = AtomicI32::new(0);

/// Runs `make` while the numbers of the standard streams are in use, so that new descriptors get other numbers.
pub fn apart<T>(make: impl FnOnce() -> T) -> T {
    let _plugs = Plugs::new();
    make()
}

/// Placeholder descriptors for free numbers among the first three. They can be neither read nor written.
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
            // SAFETY: creates a new descriptor, or fails; no other code knows its number.
            *plug = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
                fd @ 0..=2 => Some(fd),
                fd => {
                    // SAFETY: closes the descriptor that was created above; close fails for a negative number.
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
            // SAFETY: closes the descriptors that `new` created.
            unsafe { libc::close(fd) };
        }
        INSIDE.store(0, Ordering::Release);
    }
}
