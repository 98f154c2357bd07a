//! What kernels print. The driver writes it to the process's standard output, which is a file in memory here: unlike a
//! pipe it never blocks the driver, whoever reads it and when.

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fstat, memfd_create};
use std::io;
use std::os::fd::OwnedFd;

/// Read text is given back to the system in steps of this size.
const PUNCH: u64 = 1 << 20;
/// Text is handed on in pieces of at most this size.
const PIECE: usize = 1 << 20;

pub struct Text {
    file: OwnedFd,
    read: u64,
    punched: u64,
}

impl Text {
    /// Makes standard output such a file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn capture_stdout() -> io::Result<Text> {
        let file = memfd_create("stdout", MemfdFlags::CLOEXEC)?;
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::APPEND)?;
        rustix::stdio::dup2_stdout(&file)?;
        Ok(Text { file, read: 0, punched: 0 })
    }

    /// The next piece that was printed since the last call; empty when there is none.
    pub fn take(&mut self) -> Vec<u8> {
        // SAFETY: flushes the C library's streams, which the driver may have printed through.
        unsafe { libc::fflush(std::ptr::null_mut()) };
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
