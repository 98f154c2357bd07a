//! Tickets: 64 bytes that name memory or an event, and that a program passes to another process of its lease. A ticket
//! is the content of a `cuIpc*` handle, or of a file whose descriptor the program passes on (SCM_RIGHTS,
//! `pidfd_getfd`). It contains no device address or driver handle.

use crate::Code;
use driverapi::descriptors::apart;
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The appliance's name for an exported object.
pub type Token = [u8; 16];

pub type Bytes = [u8; 64];

/// The kind of a ticket, stored in its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A handle of `cuIpcGetMemHandle`. Its numbers are the offset of the allocation in the slab, its size and the
    /// slab's size, in bytes.
    Allocation,
    /// A handle of `cuIpcGetEventHandle`.
    Event,
    /// A file of `cuMemExportToShareableHandle`. Its number is the size in bytes.
    Physical,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub kind: Kind,
    pub token: Token,
    /// The UUID of the share's device.
    pub device: [u8; 16],
    pub numbers: [u64; 3],
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        match self {
            Kind::Allocation => *b"rgpuipc1",
            Kind::Event => *b"rgpuevt1",
            Kind::Physical => *b"rgpumem1",
        }
    }
}

impl Ticket {
    pub fn encode(&self) -> Bytes {
        let mut bytes = [0; 64];
        let numbers = self.numbers.map(u64::to_le_bytes);
        let parts: [&[u8]; 4] = [&self.kind.magic(), &self.token, &self.device, numbers.as_flattened()];
        for (to, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *byte;
        }
        bytes
    }

    /// Decodes a ticket. Returns `None` if the bytes are not a ticket of this kind.
    pub fn decode(kind: Kind, bytes: &Bytes) -> Option<Ticket> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (device, rest) = rest.split_first_chunk()?;
        let mut numbers = rest.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let numbers = [numbers.next()?, numbers.next()?, numbers.next()?];
        (*magic == kind.magic()).then_some(Ticket { kind, token: *token, device: *device, numbers })
    }

    /// Creates a file that contains the ticket.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the process has no more descriptors.
    pub fn file(&self) -> Result<OwnedFd, Code> {
        let (no_memory, bytes) = (|_| CUDA_ERROR_OUT_OF_MEMORY, self.encode());
        let file = apart(|| memfd_create("remotegpu-memory", MemfdFlags::CLOEXEC)).map_err(no_memory)?;
        let written = pwrite(&file, &bytes, 0).map_err(no_memory)?;
        if written == bytes.len() { Ok(file) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
    }

    /// Reads the ticket in a file.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the file does not contain a ticket of this kind.
    pub fn read(kind: Kind, file: BorrowedFd<'_>) -> Result<Ticket, Code> {
        let mut bytes = [0; 64];
        let read = pread(file, &mut bytes, 0).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let whole = (read == bytes.len()).then_some(bytes);
        whole.and_then(|bytes| Ticket::decode(kind, &bytes)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const TICKET: Ticket =
        Ticket { kind: Kind::Allocation, token: [7; 16], device: [9; 16], numbers: [512, 100, 4 << 20] };

    #[test]
    fn a_ticket_names_what_was_exported() {
        assert_eq!(Ticket::decode(Kind::Allocation, &TICKET.encode()), Some(TICKET));
    }

    #[test]
    fn other_bytes_are_none() {
        assert_eq!(Ticket::decode(Kind::Event, &TICKET.encode()), None);
        assert_eq!(Ticket::decode(Kind::Allocation, &[0; 64]), None);
    }

    #[test]
    fn a_file_names_what_was_exported() {
        let file = TICKET.file().expect("a file");
        assert_eq!(Ticket::read(Kind::Allocation, file.as_fd()), Ok(TICKET));
    }

    #[test]
    fn other_files_are_none() {
        let file = memfd_create("other", MemfdFlags::CLOEXEC).expect("a file");
        assert_eq!(Ticket::read(Kind::Physical, file.as_fd()), Err(CUDA_ERROR_INVALID_VALUE));
        pwrite(&file, &[0; 64], 0).expect("written");
        assert_eq!(Ticket::read(Kind::Physical, file.as_fd()), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
