//! What `cuMemExportToShareableHandle` gives the program: a file of 64 bytes that names memory of the lease. It travels as
//! any descriptor does (SCM_RIGHTS, `pidfd_getfd`); no memory of the device is in it.

use super::Token;
use crate::Code;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::os::fd::{BorrowedFd, OwnedFd};

const MAGIC: [u8; 8] = *b"rgpumem1";
const BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub token: Token,
    /// The UUID of the share's device.
    pub device: [u8; 16],
    pub size: u64,
}

impl Ticket {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..40].copy_from_slice(&self.device);
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    /// A new file that says this.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the process has no more descriptors.
    pub fn file(&self) -> Result<OwnedFd, Code> {
        let no_memory = |_| CUDA_ERROR_OUT_OF_MEMORY;
        let file = memfd_create("remotegpu-memory", MemfdFlags::CLOEXEC).map_err(no_memory)?;
        match pwrite(&file, &self.encode(), 0).map_err(no_memory)? {
            BYTES => Ok(file),
            _ => Err(CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a file that is no ticket.
    pub fn read(file: BorrowedFd<'_>) -> Result<Ticket, Code> {
        let mut bytes = [0; BYTES];
        let read = pread(file, &mut bytes, 0).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let part = |at: usize| bytes[at..at + 16].try_into().unwrap_or_default();
        let size = u64::from_le_bytes(bytes[40..48].try_into().unwrap_or_default());
        match read == BYTES && bytes[..8] == MAGIC {
            true => Ok(Ticket { token: part(8), device: part(24), size }),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_names_what_was_exported() {
        let ticket = Ticket { token: [7; 16], device: [9; 16], size: 2 << 20 };
        let file = ticket.file().expect("a file");
        assert_eq!(Ticket::read(file.as_fd()), Ok(ticket));
    }

    #[test]
    fn other_files_are_none() {
        let file = memfd_create("other", MemfdFlags::CLOEXEC).expect("a file");
        assert_eq!(Ticket::read(file.as_fd()), Err(CUDA_ERROR_INVALID_VALUE));
        pwrite(&file, &[0; BYTES], 0).expect("written");
        assert_eq!(Ticket::read(file.as_fd()), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
