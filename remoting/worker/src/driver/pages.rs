//! Memory of another process, mapped from a file whose size cannot change.

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// A mapping that exists until it is dropped. This code never reads the bytes, because other processes may change them
/// at any time.
#[derive(Debug)]
pub struct Pages {
    address: usize,
    len: usize,
}

impl Pages {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
    /// `TMPFS_MAGIC`, the file system of a memfd. A missing page of a memfd is allocated at its first use. Other sealed
    /// files use huge pages, which may run out, and then a use is a bus error.
    const MEMFD: i64 = 0x0102_1994;

    /// Maps a memfd of another process.
    ///
    /// # Errors
    /// Fails if the file is not a memfd of `len` bytes with the required seals, or if there is no room for the mapping.
    pub fn open(file: &OwnedFd, len: u64) -> io::Result<Pages> {
        let sealed = fcntl_get_seals(file)?.contains(Pages::SEALS) && fstatfs(file)?.f_type == Pages::MEMFD;
        let len =
            usize::try_from(len).ok().filter(|_| sealed && fstat(file).is_ok_and(|stat| stat.st_size as u64 == len));
        let len = len.ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: a new mapping that replaces none, of a file whose size cannot change.
        let at = unsafe { mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        Ok(Pages { address: at.expose_provenance(), len })
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`. A copy that uses the address keeps this value until the driver is done.
        let _ = unsafe { munmap(with_exposed_provenance_mut(self.address), self.len) };
    }
}
