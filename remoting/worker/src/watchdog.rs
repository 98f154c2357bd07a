//! Ends the process when there is nobody left to work for, even if the driver does not return from a call.
//!
//! (The kernel's parent-death signal would not do: it comes when the *thread* that started the process ends.)

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// Watches the client.
///
/// # Errors
/// If there are no descriptors left.
pub fn watch_client(connection: BorrowedFd<'_>) -> std::io::Result<()> {
    let connection = connection.try_clone_to_owned()?;
    std::thread::spawn(move || {
        wait_for(&connection, PollFlags::RDHUP);
        std::thread::sleep(GRACE);
        exit();
    });
    Ok(())
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
