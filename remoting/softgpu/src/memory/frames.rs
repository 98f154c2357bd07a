//! A file that holds the devices' physical memory, for tests. A process finds the data that an earlier process left.
//!
//! A used range is locked in the file. The kernel removes a process's locks when the process ends for any reason.

use crate::ffi::R;
use crate::memory::arena::GRANULARITY;
use driverapi::descriptors::apart;
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use rustix::fs::{Mode, OFlags, fstat, ftruncate, open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Frames {
    file: OwnedFd,
    /// The number of bytes of each device.
    bytes: u64,
    /// The ranges that this process uses. The kernel's lock alone would allow the process to take a range twice.
    ours: Mutex<Vec<(u64, u64)>>,
}

/// A range that no other process can take until this value is dropped.
pub struct Taken {
    frames: Arc<Frames>,
    pub at: u64,
    len: u64,
}

impl Frames {
    /// Opens the file at `path`, or creates it with room for `devices` devices of `bytes` bytes. Existing contents
    /// stay.
    pub fn open(path: &Path, bytes: u64, devices: usize) -> R<Arc<Frames>> {
        let no_memory = |_| CUDA_ERROR_OUT_OF_MEMORY;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = apart(|| open(path, flags, Mode::from_raw_mode(0o666))).map_err(no_memory)?;
        let whole = bytes * devices as u64;
        if (fstat(&file).map_err(no_memory)?.st_size as u64) < whole {
            ftruncate(&file, whole).map_err(no_memory)?;
        }
        Ok(Arc::new(Frames { file, bytes, ours: Mutex::default() }))
    }

    /// Takes the first free range of `len` bytes of a device.
    pub fn take(self: &Arc<Frames>, device: usize, len: u64) -> R<Taken> {
        let first = self.bytes * device as u64;
        let last = (first + self.bytes).checked_sub(len).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let mut ours = self.ours();
        let is_free = |at: u64| ours.iter().all(|&(base, size)| at + len <= base || base + size <= at);
        let places = (first..=last).step_by(GRANULARITY as usize);
        let at = places.filter(|&at| is_free(at)).find(|&at| self.lock(libc::F_WRLCK, at, len));
        let at = at.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        ours.push((at, len));
        Ok(Taken { frames: Arc::clone(self), at, len })
    }

    fn ours(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, kind: libc::c_int, at: u64, len: u64) -> bool {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: at as libc::off_t,
            l_len: len as libc::off_t,
            l_pid: 0,
        };
        // SAFETY: the descriptor is ours, and the kernel only reads the lock, which lives until the end of the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
    }
}

impl Taken {
    pub fn file(&self) -> BorrowedFd<'_> {
        self.frames.file.as_fd()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut ours = self.frames.ours();
        ours.retain(|&(at, _)| at != self.at);
        self.frames.lock(libc::F_UNLCK, self.at, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_owner_at_a_time_in_all_processes() {
        let path = std::env::temp_dir().join(format!("remotegpu-frames-{}", std::process::id()));
        // Two open descriptions of one file have separate locks, as two processes do.
        let [one, other] = [(); 2].map(|()| Frames::open(&path, 3 * GRANULARITY, 2).expect("a file"));
        let [a, b] = [&one, &other].map(|frames| frames.take(0, GRANULARITY).expect("room"));
        let c = one.take(0, GRANULARITY).expect("room");
        assert_eq!([a.at, b.at, c.at], [0, 1, 2].map(|n| n * GRANULARITY));
        assert!(other.take(0, GRANULARITY).is_err());
        assert_eq!(other.take(1, 3 * GRANULARITY).expect("the second device").at, 3 * GRANULARITY);
        drop(b);
        assert_eq!(one.take(0, GRANULARITY).expect("given back").at, GRANULARITY);
        std::fs::remove_file(path).expect("removed");
    }
}
