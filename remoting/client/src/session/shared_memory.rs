//! Page-locked memory that a worker on this machine shares: copies say where in it the bytes lie.

use super::{HostBox, Session, lock};
use crate::program::{process, sys};
use driverapi::descriptors::apart;
use protocol::{CopyToDeviceShared, Message, NOT_SHARED, SHARED, SharedMemory, since};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Copies of less than this go by the wire: there they cost no round trip. Nor is smaller memory shared.
pub(super) const LEAST: u64 = 64 << 10;
/// A driver takes about 0.1 s for each GB that it locks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a connection by which the worker gets memory, if it is on this machine.
type Connect = dyn Fn() -> Option<OwnedFd> + Send + Sync;

#[derive(Default)]
enum Channel {
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

#[derive(Default)]
pub struct Shared {
    connect: OnceLock<Box<Connect>>,
    channel: Mutex<Channel>,
    /// The end of each piece by its start. The worker has them unless the session has moved; then it asks for the
    /// bytes.
    pieces: Mutex<BTreeMap<usize, usize>>,
    any: AtomicBool,
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
fn give(channel: &OwnedFd, memory: &SharedMemory, file: &OwnedFd) -> io::Result<bool> {
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

impl Session {
    /// Sets the way to reach the worker for memory that both share.
    pub fn share_memory_by(&self, connect: impl Fn() -> Option<OwnedFd> + Send + Sync + 'static) {
        let _ = self.shared.connect.set(Box::new(connect));
    }

    /// Connects for memory at once: by the end of that connection a worker on this machine sees the end of this
    /// process, whatever network the session goes by.
    pub fn show_end(&self) {
        drop(self.channel());
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        let mut channel = lock(&self.shared.channel);
        if let Channel::Unused = *channel {
            let opened = self.shared.connect.get().and_then(|connect| connect());
            let opened = opened.filter(|channel| set_socket_timeout(channel, Timeout::Recv, Some(PATIENCE)).is_ok());
            opened.iter().for_each(|channel| process::close_in_children(channel.as_raw_fd()));
            *channel = opened.map_or(Channel::Over { _kept: None }, Channel::Open);
        }
        channel
    }

    /// Backs addresses of this process with zeroed memory that the worker has too. Returns false if the worker is
    /// elsewhere, or there is no memory; nothing was changed then.
    ///
    /// # Safety
    /// As [`sys::back`].
    pub unsafe fn back_shared(&self, context: u64, address: usize, size: usize) -> bool {
        if (size as u64) < LEAST || self.wire < since(CopyToDeviceShared::CODE) {
            return false;
        }
        let mut channel = self.channel();
        let Channel::Open(open) = &*channel else { return false };
        let Ok(file) = file(size as u64) else { return false };
        // SAFETY: as the caller vouches; the file has this size for good.
        if !unsafe { sys::back_with(address, size, file.as_fd(), 0) } {
            return false;
        }
        let memory = SharedMemory { context, address: address as u64, size: size as u64 };
        // The worker waits for the context, whose creation may not have been sent.
        match self.flush().map_err(|_| io::ErrorKind::NotConnected.into()).and_then(|()| give(open, &memory, &file)) {
            Ok(true) => {
                lock(&self.shared.pieces).insert(address, address + size);
                self.shared.any.store(true, SeqCst);
            }
            Ok(false) => {}
            Err(_) => self.share_nothing(&mut channel),
        }
        true
    }

    /// Ends sharing of the memory that starts there. No copy uses it any more.
    pub fn end_shared(&self, address: usize) {
        if lock(&self.shared.pieces).remove(&address).is_none() {
            return;
        }
        let mut channel = lock(&self.shared.channel);
        let Channel::Open(open) = &*channel else { return };
        let gone = SharedMemory { context: 0, address: address as u64, size: 0 }.encode();
        // A partial write is a failure, too.
        if !send(open, &gone, SendFlags::NOSIGNAL).is_ok_and(|sent| sent == gone.len()) {
            self.share_nothing(&mut channel);
        }
    }

    /// Checks the sharing after a reconnect, which may have led to another worker: then nothing is shared with it. For
    /// the reader, which may not wait.
    pub(super) fn check_shared(&self) {
        let Ok(mut channel) = self.shared.channel.try_lock() else { return };
        let Channel::Open(open) = &*channel else { return };
        if recv(open, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Errno::AGAIN) {
            self.share_nothing(&mut channel);
        }
    }

    /// Stops sharing: all copies go by the wire from now on.
    fn share_nothing(&self, channel: &mut Channel) {
        if let Channel::Open(open) = std::mem::take(channel) {
            *channel = Channel::Over { _kept: Some(open) };
        }
        self.shared.any.store(false, SeqCst);
        lock(&self.shared.pieces).clear();
    }

    /// Returns where the bytes of a copy lie, if the worker has them too and the copy is large enough.
    pub(super) fn shared_place(&self, host: &HostBox) -> Option<u64> {
        if !self.shared.any.load(SeqCst) || host.packed() < LEAST {
            return None;
        }
        let (start, end) = host.span();
        let pieces = lock(&self.shared.pieces);
        let (_, last) = pieces.range(..=start).next_back()?;
        (end <= *last && (end - start) as u64 == host.packed()).then_some(start as u64)
    }

    /// Whether the worker has this memory, too.
    pub fn shares(&self, host: &HostBox) -> bool {
        self.shared_place(host).is_some()
    }
}
