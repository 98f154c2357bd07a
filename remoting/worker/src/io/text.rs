//! The output of kernels, and the driver's messages about failed assertions. The driver writes both to the standard
//! output and error of the process. The worker replaces these by files in memory. Unlike a pipe, such a file never
//! blocks the driver.

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fstat, memfd_create};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// The step in bytes in which memory of text that was read is returned to the system.
const PUNCH: u64 = 1 << 20;
/// Limit in bytes on one piece of text.
const PIECE: usize = 1 << 20;

/// The standard error that the process got from the appliance.
static APPLIANCE: OnceLock<OwnedFd> = OnceLock::new();

/// Writes a line to the appliance's log. It does not use standard error, which may have been redirected to the client.
pub fn complain(line: &str) {
    let line = format!("remotegpu-worker: {line}\n");
    // A closed stream cannot be reported.
    let _ = match APPLIANCE.get() {
        Some(log) => rustix::io::write(log, line.as_bytes()).map_err(io::Error::from),
        None => io::Write::write(&mut io::stderr(), line.as_bytes()),
    };
}

pub struct Text {
    output: Captured,
    errors: Captured,
}

struct Captured {
    file: OwnedFd,
    read: u64,
    punched: u64,
}

impl Text {
    /// Replaces standard output and error by files in memory. A panic message still goes to the appliance's log.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn capture() -> io::Result<Text> {
        let (output, errors) = (Captured::new("stdout")?, Captured::new("stderr")?);
        let _ = APPLIANCE.set(io::stderr().as_fd().try_clone_to_owned()?);
        std::panic::set_hook(Box::new(|panic| complain(&panic.to_string())));
        rustix::stdio::dup2_stdout(&output.file)?;
        rustix::stdio::dup2_stderr(&errors.file)?;
        Ok(Text { output, errors })
    }

    /// Returns the next piece of output, and whether it was written to standard error. Returns `None` if there is no
    /// output.
    pub fn take(&mut self) -> Option<(bool, Vec<u8>)> {
        // SAFETY: flushes all streams of the C library, which the driver may have used.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let each = [(false, &mut self.output), (true, &mut self.errors)];
        each.into_iter().map(|(stderr, captured)| (stderr, captured.take())).find(|(_, bytes)| !bytes.is_empty())
    }
}

impl Captured {
    fn new(name: &str) -> io::Result<Captured> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::APPEND)?;
        Ok(Captured { file, read: 0, punched: 0 })
    }

    fn take(&mut self) -> Vec<u8> {
        let size = fstat(&self.file).map_or(0, |stat| stat.st_size as u64);
        let wanted = size.saturating_sub(self.read).min(PIECE as u64) as usize;
        if wanted == 0 {
            return Vec::new();
        }
        let mut bytes = vec![0; wanted];
        let count = rustix::io::pread(&self.file, &mut bytes[..], self.read).unwrap_or(0);
        bytes.truncate(count);
        self.read += count as u64;
        if self.read - self.punched >= PUNCH {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&self.file, hole, self.punched, self.read - self.punched).is_ok() {
                self.punched = self.read;
            }
        }
        bytes
    }
}
