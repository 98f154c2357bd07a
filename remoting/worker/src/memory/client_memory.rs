//! Page-locked memory of a client on this machine. The worker maps it too, so that copies need not send its bytes over
//! the wire.
//!
//! The client passes a descriptor on a separate connection and waits for the answer. Therefore no command names memory
//! that is not mapped yet. Commands name the bytes by their address in the client. Bytes that are not shared, or no
//! longer shared because the session has moved, go over the wire.

use crate::driver::pages::Pages;
use crate::driver::{Code, Handle, Result};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use protocol::{NOT_SHARED, SHARED, SharedMemory};
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

const PAGE: u64 = 4096;
/// Limit on a session's shared mappings.
const MOST: usize = 1 << 12;

/// A shared mapping. Each copy that the driver has keeps the mapping alive.
#[derive(Debug)]
pub struct Shared {
    pub memory: SharedMemory,
    pub pages: Pages,
    /// The context in which the memory was registered as page-locked.
    pub context: Handle,
}

#[derive(Default)]
pub struct ClientMemory {
    pub socket: Option<OwnedFd>,
    /// Whether the client has closed its end of the socket. The process of the client keeps the socket open until it
    /// ends or runs another program, and no network failure can break it.
    pub closed: bool,
    /// Memory that the client shared before its context was created.
    pub waits: Option<(SharedMemory, OwnedFd)>,
    /// The context in which a helper is registering memory, or `None`.
    pub registers: Option<u64>,
    /// The shared mappings, by the client's addresses.
    pub shared: BTreeMap<u64, Rc<Shared>>,
}

impl ClientMemory {
    /// Sets the socket on which the client shares memory.
    pub fn follow(&mut self, socket: OwnedFd) {
        self.socket = Some(socket);
        self.closed = false;
    }

    /// Whether the client's process has ended or runs another program.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the socket for the next descriptor. Returns `None` while a descriptor is being handled.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        let free = self.registers.is_none() && self.waits.is_none();
        self.socket.as_ref().filter(|_| free).map(AsFd::as_fd)
    }

    pub fn registers_in(&self, context: u64) -> bool {
        self.registers == Some(context)
    }

    /// Removes the mappings that were registered in a context which has been destroyed.
    pub fn forget_context(&mut self, context: u64) {
        self.shared.retain(|_, shared| shared.memory.context != context);
    }

    /// Returns the address in this process of the client's bytes, or `None` if they are not all mapped.
    pub fn find(&self, address: u64, len: u64) -> Option<(Rc<Shared>, Handle)> {
        let (start, shared) = self.shared.range(..=address).next_back()?;
        let offset = address - start;
        let inside = offset.checked_add(len)? <= shared.memory.size;
        inside.then(|| (Rc::clone(shared), Handle(shared.pages.address() + offset as usize)))
    }

    /// Checks memory that the client wants to share. `most` limits the bytes of all mappings.
    pub fn check(&self, memory: &SharedMemory, most: u64) -> Result<()> {
        let SharedMemory { address, size, .. } = *memory;
        let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let aligned = size > 0 && address.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        let before = self.shared.range(..end).next_back();
        let free = before.is_none_or(|(start, other)| start + other.memory.size <= address);
        let bytes: u64 = self.shared.values().map(|shared| shared.memory.size).sum();
        let fits = self.shared.len() < MOST && bytes.checked_add(size).is_some_and(|all| all <= most);
        if aligned && free && fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub fn answer(&mut self, done: std::result::Result<(), Code>) {
        let answer = [if done.is_ok() { SHARED } else { NOT_SHARED }];
        let Some(socket) = &self.socket else { return };
        if send(socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.socket = None;
        }
    }
}
