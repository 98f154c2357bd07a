//! Handles that one process gives another on this machine by `cuIpc*`: 64 bytes that name a file which the process has
//! open. As in CUDA, that process must still exist when the other one opens the handle.

use crate::ffi::R;
use driverapi::errors::CUDA_ERROR_INVALID_HANDLE;
use driverapi::types::CUuuid;
use rustix::fs::fstat;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Event,
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        match self {
            Kind::Memory => *b"softmem1",
            Kind::Event => *b"softevt1",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessHandle {
    pub kind: Kind,
    pub device: CUuuid,
    pub process: u32,
    file: u32,
    /// The file's inode number. It shows whether the descriptor's number was reused for another file.
    pub inode: u64,
    /// The length of the memory in bytes.
    pub len: u64,
}

impl ProcessHandle {
    pub fn of(kind: Kind, device: CUuuid, file: BorrowedFd<'_>, len: u64) -> R<ProcessHandle> {
        let inode = fstat(file).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?.st_ino;
        let file = file.as_raw_fd() as u32;
        Ok(ProcessHandle { kind, device, process: std::process::id(), file, inode, len })
    }

    pub fn encode(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&self.kind.magic());
        bytes[8..24].copy_from_slice(&self.device.bytes);
        bytes[24..28].copy_from_slice(&self.process.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.file.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.inode.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if the bytes are not a handle of this kind.
    pub fn decode(kind: Kind, bytes: &[u8; 64]) -> R<ProcessHandle> {
        let decoded = || {
            let (magic, rest) = bytes.split_first_chunk()?;
            let (device, rest) = rest.split_first_chunk()?;
            let (process, rest) = rest.split_first_chunk()?;
            let (file, rest) = rest.split_first_chunk()?;
            let (inode, rest) = rest.split_first_chunk()?;
            let (len, _) = rest.split_first_chunk()?;
            (*magic == kind.magic()).then_some(ProcessHandle {
                kind,
                device: CUuuid { bytes: *device },
                process: u32::from_le_bytes(*process),
                file: u32::from_le_bytes(*file),
                inode: u64::from_le_bytes(*inode),
                len: u64::from_le_bytes(*len),
            })
        };
        decoded().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Opens the other process's file.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if that process no longer has the file open, or belongs to another user.
    pub fn open(&self) -> R<File> {
        let path = format!("/proc/{}/fd/{}", self.process, self.file);
        let file = File::options().read(true).write(true).open(path).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        let found = fstat(&file).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        if found.st_ino == self.inode { Ok(file) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
    }
}

/// Whether a process has ended. A process for which its parent has not yet waited counts as ended.
pub fn has_ended(process: u32) -> bool {
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).ok().and_then(state);
    matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_handle_opens_its_file_and_no_other() {
        let file = File::open("/proc/self/exe").unwrap();
        let device = CUuuid { bytes: [7; 16] };
        let handle = ProcessHandle::of(Kind::Memory, device, file.as_fd(), 100).unwrap();
        assert_eq!(ProcessHandle::decode(Kind::Memory, &handle.encode()), Ok(handle));
        assert_eq!(ProcessHandle::decode(Kind::Event, &handle.encode()), Err(CUDA_ERROR_INVALID_HANDLE));
        let other = ProcessHandle { inode: handle.inode + 1, ..handle };
        assert_eq!(other.open().map(drop), Err(CUDA_ERROR_INVALID_HANDLE));
    }

    #[test]
    fn a_process_that_nobody_waited_for_has_ended() {
        assert!(!has_ended(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }
}
