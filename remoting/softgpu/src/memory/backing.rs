//! Physical memory without a fixed address. It is a file without a name, which other processes can map too.

use crate::ffi::R;
use crate::memory::arena::{self, PAGE};
use crate::memory::frames::Taken;
use driverapi::descriptors::apart;
use driverapi::errors::*;
use driverapi::types::{CUresult, CUuuid};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Memory that can be mapped at different addresses, also in other processes, and keeps its contents. A label behind
/// the memory in the file names the owner.
pub enum Backing {
    Own(OwnedFd),
    /// A part of the file that holds all devices' memory in tests. Other processes cannot use this part.
    Part(Taken),
}

/// The number of bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// The label at the end of a `Backing`'s file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label {
    device: CUuuid,
    len: u64,
}

impl Label {
    const MAGIC: [u8; 8] = *b"softgpu1";
    const BYTES: usize = 32;

    fn encode(&self) -> [u8; Label::BYTES] {
        let mut bytes = [0; Label::BYTES];
        bytes[..8].copy_from_slice(&Label::MAGIC);
        bytes[8..24].copy_from_slice(&self.device.bytes);
        bytes[24..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }
}

impl Backing {
    pub fn create(len: u64, device: CUuuid) -> R<Backing> {
        let made = || memfd_create("softgpu", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = apart(made).map_err(no_memory)?;
        ftruncate(&file, len + PAGE).map_err(no_memory)?;
        pwrite(&file, &Label { device, len }.encode(), len).map_err(no_memory)?;
        fcntl_add_seals(&file, Backing::SEALS).map_err(no_memory)?;
        Ok(Backing::Own(file))
    }

    /// The seals that fix the file's size. If the size could change, a process that maps the file could crash.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Imports memory that another process exported. Also returns its length in bytes.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the file is not a complete `Backing` of this device.
    pub fn import(file: BorrowedFd<'_>, device: CUuuid) -> R<(Backing, u64)> {
        let invalid = |_| CUDA_ERROR_INVALID_VALUE;
        let sealed = fcntl_get_seals(file).map_err(invalid)?.contains(Backing::SEALS);
        let size = fstat(file).map_err(invalid)?.st_size as u64;
        let len = size.checked_sub(PAGE).filter(|_| sealed).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut label = [0; Label::BYTES];
        let read = pread(file, &mut label, len).map_err(invalid)?;
        if read != label.len() || label != (Label { device, len }).encode() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok((Backing::Own(file.try_clone_to_owned().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?), len))
    }

    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for memory that is part of a file.
    pub fn file(&self) -> R<BorrowedFd<'_>> {
        match self {
            Backing::Own(file) => Ok(file.as_fd()),
            Backing::Part(_) => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// Returns a file descriptor that another process can import.
    pub fn export(&self) -> R<OwnedFd> {
        self.file()?.try_clone_to_owned().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Copies the contents of `[at, at + len)` in the arena, and then maps itself there. `len` is the length of the
    /// memory. Nothing may write to the range during this call.
    pub fn take_over(&self, at: u64, len: u64) -> R {
        let file = self.file()?;
        let mut piece = vec![0u8; len.min(PIECE) as usize];
        for offset in (0..len).step_by(PIECE as usize) {
            let bytes = &mut piece[..(len - offset).min(PIECE) as usize];
            arena::copy(bytes.as_mut_ptr().expose_provenance() as u64, at + offset, bytes.len() as u64);
            // The new file is all zeros without using memory, so pieces of zeros are not written.
            let written =
                if bytes.iter().any(|&byte| byte != 0) { pwrite(file, bytes, offset) } else { Ok(bytes.len()) };
            if written.map_err(no_memory)? != bytes.len() {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        self.map(at, len, 0)
    }

    /// Maps the memory from `offset` on at `[at, at + len)`, a page-aligned range of the arena.
    pub fn map(&self, at: u64, len: u64, offset: u64) -> R {
        match self {
            Backing::Own(file) => arena::show(at, len, file.as_fd(), offset),
            Backing::Part(taken) => arena::show(at, len, taken.file(), taken.at + offset),
        }
    }
}

fn no_memory(_: Errno) -> CUresult {
    CUDA_ERROR_OUT_OF_MEMORY
}
