//! Ends the process when there is nobody left to work for, even if the driver does not return from a call.
//!
//! (The kernel's parent-death signal would not do: it comes when the *thread* that started the process ends.)

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A session may take this long to end by itself, and to overwrite its memory, when its client or the appliance is gone.
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

/// Watches the client's connections, of which a later one takes the place of the one before.
pub struct ClientWatch {
    shared: Arc<(Mutex<Option<OwnedFd>>, Condvar)>,
}

impl ClientWatch {
    /// Another connection must come within `grace` of the end of the last.
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

/// Returns when the peer's end is gone; that and errors are told whatever is asked for.
fn wait_for(fd: &OwnedFd, what: PollFlags) {
    while poll(&mut [PollFd::from_borrowed_fd(fd.as_fd(), what)], None) == Err(Errno::INTR) {}
}

/// The driver's own goodbye would wait for kernels that may never end; the system takes everything back anyway.
pub fn exit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}
