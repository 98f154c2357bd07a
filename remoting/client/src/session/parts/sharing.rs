//! The connection over which a worker on this machine gets page-locked memory, and a list of the memory it has.

use crate::locks::{Ordered, Rank};
use driverapi::descriptors::apart;
use protocol::{NOT_SHARED, SHARED, SharedMemory};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The minimum number of bytes for shared memory and for copies through it. Smaller copies are sent over the
/// connection, where they need no round trip.
pub const LEAST: u64 = 64 << 10;
/// The maximum time to wait for the worker's answer. A driver needs about 0.1 s to lock 1 GB.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a connection for sharing memory. Returns `None` if the worker is on another machine.
pub type Connect = dyn Fn() -> Option<OwnedFd> + Send + Sync;

#[derive(Default)]
pub enum Channel {
    /// No memory has been shared yet.
    #[default]
    Unused,
    Open(OwnedFd),
    /// Sharing has ended. An open connection is kept, because the worker notices the end of this process by its end.
    Over {
        _kept: Option<OwnedFd>,
    },
}

pub struct Shared {
    pub connect: OnceLock<Box<Connect>>,
    pub channel: Ordered<Channel>,
    /// The end of each shared range, by its start. If the session has moved, its new worker does not have this memory
    /// and requests the bytes instead.
    pub pieces: Mutex<BTreeMap<usize, usize>>,
    pub any: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        let channel = Ordered::new(Rank::Channel, Channel::Unused);
        Shared { connect: OnceLock::new(), channel, pieces: Mutex::default(), any: AtomicBool::new(false) }
    }
}

/// Creates a memory file of `size` bytes. It is sealed, so that neither end can shrink it.
pub fn file(size: u64) -> io::Result<OwnedFd> {
    // If the file were larger than the process's limit, the kernel would kill the process with a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = apart(|| memfd_create("remotegpu-pinned", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Sends the memory to the worker. Returns whether the worker has mapped it.
pub fn give(channel: &OwnedFd, memory: &SharedMemory, file: &OwnedFd) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(channel, &[IoSlice::new(&memory.encode())], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut answer = [0];
    match recv(channel, &mut answer[..], RecvFlags::empty())? {
        (1, _) if answer == [SHARED] => Ok(true),
        (1, _) if answer == [NOT_SHARED] => Ok(false),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
