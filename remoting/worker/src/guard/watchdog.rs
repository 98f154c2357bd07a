//! Ends the process when its client or the appliance is gone, even if the driver does not return from a call.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time that a session has to end by itself, and to overwrite its memory, when its client or the appliance is gone.
const GRACE: Duration = Duration::from_secs(4);

/// Watches the appliance.
///
/// # Errors
/// If there are no descriptors left.
pub fn watch_appliance(control: BorrowedFd<'_>) -> std::io::Result<()> {
    let control = control.try_clone_to_owned()?;
    std::thread::spawn(move || {
        wait_for(&control, PollFlags::HUP);
        std::thread::sleep(GRACE);
        exit();
    });
    Ok(())
}

/// Watches the client's connection, which a later one replaces.
pub struct ClientWatch {
    shared: Arc<(Mutex<Option<OwnedFd>>, Condvar)>,
}

impl ClientWatch {
    /// Starts to watch. Another connection must come within `grace` of the end of the last one.
    ///
    /// # Errors
    /// If there are no threads left.
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

    /// # Errors
    /// If there are no descriptors left.
    pub fn follow(&self, connection: BorrowedFd<'_>) -> std::io::Result<()> {
        let (next, changed) = &*self.shared;
        *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.try_clone_to_owned()?);
        changed.notify_one();
        Ok(())
    }
}

/// Returns when the peer's end is gone; `poll` reports that and errors whatever it was asked for.
fn wait_for(fd: &OwnedFd, what: PollFlags) {
    while poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), what)], None) == Err(Errno::INTR) {}
}

/// Ends the process at once. The driver's own shutdown would wait for kernels that may never end; the system frees
/// everything anyway.
pub fn exit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}
