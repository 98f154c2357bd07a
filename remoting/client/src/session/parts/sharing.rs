//! The connection by which a worker on this machine gets page-locked memory, and the memory that it has got.

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

/// Copies of less than this go by the wire: there they cost no round trip. Nor is smaller memory shared.
pub const LEAST: u64 = 64 << 10;
/// A driver takes about 0.1 s for each GB that it locks.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a connection by which the worker gets memory, if it is on this machine.
pub type Connect = dyn Fn() -> Option<OwnedFd> + Send + Sync;

#[derive(Default)]
pub enum Channel {
    /// Nothing was shared yet.
    #[default]
    Unused,
    Open(OwnedFd),
    /// The end of sharing: nothing is shared any more. An open connection stays: its end tells the worker that this
    /// process has ended.
    Over {
        _kept: Option<OwnedFd>,
    },
}

pub struct Shared {
    pub connect: OnceLock<Box<Connect>>,
    pub channel: Ordered<Channel>,
    /// The end of each piece by its start. The worker has them unless the session has moved; then it asks for the
    /// bytes.
    pub pieces: Mutex<BTreeMap<usize, usize>>,
    pub any: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        let channel = Ordered::new(Rank::Channel, Channel::Unused);
        Shared { connect: OnceLock::new(), channel, pieces: Mutex::default(), any: AtomicBool::new(false) }
    }
}

/// A new file for the memory, which no end can make shorter.
pub fn file(size: u64) -> io::Result<OwnedFd> {
    // Beyond the limit of a file's size the kernel would not only refuse, but end the program by a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let file = apart(|| memfd_create("remotegpu-pinned", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Whether the worker has the memory too.
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
