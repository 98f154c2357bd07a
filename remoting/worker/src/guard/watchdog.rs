//! The watchdog ends the process when its client or the appliance is gone, even if a driver call never returns.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The time that a session has to end by itself and to overwrite its memory after its client or the appliance is gone.
const GRACE: Duration = Duration::from_secs(4);

/// Starts a thread that ends the process after the appliance closes its socket.
///
/// # Errors
/// Fails if no descriptors are left.
pub fn watch_appliance(control: BorrowedFd<'_>) -> std::io::Result<()> {
    let control = control.try_clone_to_owned()?;
    std::thread::spawn(move || {
        wait_for(&control, PollFlags::HUP);
        std::thread::sleep(GRACE);
        exit();
    });
    Ok(())
}

/// A watch of the client's connection. Another connection can replace the watched one.
pub struct ClientWatch {
    shared: Arc<(Mutex<Option<OwnedFd>>, Condvar)>,
}

impl ClientWatch {
    /// Starts to watch. The process ends if no other connection comes within `grace` after the last one ended.
    ///
    /// # Errors
    /// Fails if no threads are left.
    pub fn start(grace: Duration) -> std::io::Result<Self> {
        let shared = Arc::new((Mutex::new(None), Condvar::new()));
        let watch = ClientWatch { shared: Arc::clone(&shared) };
        let body = move || {
            let (next, changed) = &*shared;
            let mut limit = Duration::MAX;
            loop {
                let waiting = next.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(waiting, limit, |next: &mut Option<OwnedFd>| next.is_none());
                let Some(connection) = waited.unwrap_or_else(PoisonError::into_inner).0.take() else { exit() };
                wait_for(&connection, PollFlags::RDHUP);
                limit = grace + GRACE;
            }
        };
        std::thread::Builder::new().spawn(body)?;
        Ok(watch)
    }

    /// Watches this connection from now on, in place of an earlier one.
    ///
    /// # Errors
    /// Fails if no descriptors are left.
    pub fn follow(&self, connection: BorrowedFd<'_>) -> std::io::Result<()> {
        let (next, changed) = &*self.shared;
        *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.try_clone_to_owned()?);
        changed.notify_one();
        Ok(())
    }
}

/// Waits until the peer's end is closed. `poll` reports this and errors for every set of requested events.
fn wait_for(fd: &OwnedFd, what: PollFlags) {
    while poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), what)], None) == Err(Errno::INTR) {}
}

/// Ends the process at once. The driver's own shutdown would wait for kernels that may never end, and the system frees
/// everything anyway.
pub fn exit() -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(0) }
}
